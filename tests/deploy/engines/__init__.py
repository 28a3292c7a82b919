"""Tests of deploy/engines."""
