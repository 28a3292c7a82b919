"""Acting on a CPU: a network's forward pass on an actor's arrays."""
