"""Environments: the protocol of a family, the built-in families, and vectors of environments."""
