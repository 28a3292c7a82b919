"""What goes wrong with environments that is the user's to mend."""


class EnvError(Exception):
    """One line: what cannot be made, and the fix."""
