"""Tests of actors/evaluation/video."""
