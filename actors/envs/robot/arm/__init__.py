"""What an arm is and where it can reach."""
