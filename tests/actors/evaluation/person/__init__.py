"""Tests of actors/evaluation/person."""
