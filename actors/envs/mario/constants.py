"""Constants that the environment and its family share."""

SKIP = 4  # emulator frames per step
MAX_NOOPS = 30  # the usual bound of a random start
