"""Tests of actors/person."""
