"""Tests of deploy/supervision."""
