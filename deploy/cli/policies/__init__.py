"""Commands that play with a trained policy, each in a process of its own."""
