"""A person plays: the episodes become a data set."""
