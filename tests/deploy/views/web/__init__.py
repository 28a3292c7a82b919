"""Tests of deploy/views/web."""
