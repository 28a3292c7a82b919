"""What a learner saves and reads again: checkpoints of training, exported policies."""
