"""What the environment and its family both need to know."""

SKIP = 4  # emulator frames per step
MAX_NOOPS = 30  # the usual bound of a random start
