"""Tests of deploy/suite."""
