"""Tests of transport/sockets."""
