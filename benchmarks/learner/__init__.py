"""The learner beside loops that are written by hand, and what bounds it."""
