"""Evaluation, videos and pictures of a policy."""
