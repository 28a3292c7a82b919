"""Tests of deploy/reporting/sharing."""
