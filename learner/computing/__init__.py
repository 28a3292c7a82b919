"""Which library computes the updates of a run, and where."""
