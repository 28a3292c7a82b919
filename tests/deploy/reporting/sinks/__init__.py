"""Tests of deploy/reporting."""
