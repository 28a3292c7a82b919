"""The abilities of the learner's device."""
