"""Environments of Gymnasium's registry and of anyone's module."""
