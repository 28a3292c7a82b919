"""Servers of the learner: weights for actors and hosts, and actions computed for actors."""
