"""ZeroMQ sockets, who may use them, and how much. The only folder that imports zmq."""
