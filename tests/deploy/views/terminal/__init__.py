"""Tests of deploy/views/terminal."""
