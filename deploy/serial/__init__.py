"""A run in one process, for a debugger: environments, table, update and evaluation take turns, without sockets or threads."""
