"""The pre-flight of an environment, in a process of its own."""
