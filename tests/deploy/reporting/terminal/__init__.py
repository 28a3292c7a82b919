"""Tests of deploy/reporting/terminal."""
