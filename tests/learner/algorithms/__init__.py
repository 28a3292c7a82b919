"""Tests of learner/algorithms/."""
