"""Tests of deploy/views/serving."""
