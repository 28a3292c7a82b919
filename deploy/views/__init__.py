"""What people look at: the page, the terminal, cards."""
