"""Tests of deploy/views/sharing."""
