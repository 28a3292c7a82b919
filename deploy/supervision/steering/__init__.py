"""What processes at work are told: their environments, their level, an order of an operator."""
