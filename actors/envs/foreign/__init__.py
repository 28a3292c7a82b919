"""Environments of Gymnasium's registry and of users' modules."""
