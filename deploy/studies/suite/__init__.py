"""`headrace suite`: tasks, contestants and seeds, one run after the other, and what they show."""
