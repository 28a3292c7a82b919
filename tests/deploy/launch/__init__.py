"""Tests of deploy/launch."""
