"""A run over hosts that are machines to the network: each has a network namespace, and a cable that can be pulled."""
