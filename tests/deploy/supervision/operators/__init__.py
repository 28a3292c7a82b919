"""Tests of deploy/supervision/operators."""
