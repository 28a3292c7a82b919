"""Environments that one call steps."""
