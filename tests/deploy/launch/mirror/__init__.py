"""Tests of the mirror of a run."""
