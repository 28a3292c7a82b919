"""Engines start hosts for a run on a cluster."""
