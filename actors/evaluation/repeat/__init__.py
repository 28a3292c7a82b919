"""Plays past episodes again from replay's log."""
