"""Describes a run and keeps it alive."""
