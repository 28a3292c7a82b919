"""What a policy server answers."""
