"""Programs that connect as simulators: the server, what it is sent, and a client."""
