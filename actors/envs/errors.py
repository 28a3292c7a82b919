"""What is wrong with an environment that its user can fix."""


class EnvError(Exception):
    """One line: what cannot be made, why, and the fix."""
