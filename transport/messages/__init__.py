"""The typed messages, by link. On the wire a message is a header part, then the raw parts that its docstring names."""
