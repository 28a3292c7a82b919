"""Commands that use a trained policy, each in a process of its own."""
