"""Tests of deploy/reporting/web."""
