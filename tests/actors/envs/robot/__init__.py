"""The robot."""
