"""The learner: turns batches into better weights, and publishes the weights to actors."""
