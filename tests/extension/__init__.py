"""A package of a stranger: it imports the project, and the project knows nothing of it."""
