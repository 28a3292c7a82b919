"""A policy as a C header."""
