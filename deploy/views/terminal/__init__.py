"""`headrace top`: a run on the terminal, live."""
