"""Commands about this machine and what is installed."""
