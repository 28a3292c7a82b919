"""Tests of deploy/places."""
