"""Tests of deploy/studies."""
