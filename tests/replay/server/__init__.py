"""Tests of replay/server."""
