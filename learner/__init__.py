"""Turns batches into better weights, and serves those weights to whoever acts."""
