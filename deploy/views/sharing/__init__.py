"""A policy that is handed to others: its card, and the repository that it is sent to."""
