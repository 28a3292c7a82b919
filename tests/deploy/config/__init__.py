"""Tests of deploy/config."""
