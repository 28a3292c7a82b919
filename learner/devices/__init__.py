"""Which accelerators there are, and what each can do."""
