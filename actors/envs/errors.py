"""The error for environments that cannot be made or that break Gymnasium's API."""


class EnvError(Exception):
    """One line: what failed, why, and what to do."""
