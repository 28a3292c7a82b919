"""Other people's software at the same work, each run by the Python of an environment of its own."""
