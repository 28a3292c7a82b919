"""The views of a run: the page, the terminal, cards."""
