"""Commands about what actors have sent, and who may send."""
