"""Past episodes, played again from replay's log."""
