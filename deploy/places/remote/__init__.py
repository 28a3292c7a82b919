"""Places on other machines: the supervisor's side of a host, and the host's."""
