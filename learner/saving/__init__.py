"""Files of the learner: checkpoints of training, exported policies."""
