"""The replay server: its side of the actors and of the learners."""
