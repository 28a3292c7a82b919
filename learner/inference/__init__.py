"""Acting on a CPU: a policy's forward pass on an actor's arrays."""
