"""Consolidates the experience of all actors and serves batches of it. numpy only."""
