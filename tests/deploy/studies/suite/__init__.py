"""Tests of deploy/studies/suite."""
