"""Tests of replay/log."""
