"""A person plays an environment, and the episodes become a data set."""
