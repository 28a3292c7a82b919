"""Networks, built from an experience spec."""
