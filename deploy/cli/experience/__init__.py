"""Commands about stored experience, and about the keys of those that may send it."""
