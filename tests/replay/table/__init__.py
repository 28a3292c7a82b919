"""Tests of replay/table."""
