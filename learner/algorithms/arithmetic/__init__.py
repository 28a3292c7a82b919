"""Returns, advantages, densities, target networks and minibatches, shared by the algorithms."""
