"""`headrace suite`: trains every contestant on every task with every seed, one run after the other, and compares the results."""
