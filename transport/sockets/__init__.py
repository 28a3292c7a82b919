"""ZeroMQ sockets, authentication and limits. The only folder that imports zmq."""
