"""What the learner's device can do."""
