"""Bytes between processes: arrays, messages, sockets, shared memory. Nothing here depends on learning."""
