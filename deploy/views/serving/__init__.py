"""`headrace serve`: a policy answers programs over HTTP and WebSocket."""
