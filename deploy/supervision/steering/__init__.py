"""What the supervisor sends to processes at work: their environments, their level, an operator's orders."""
