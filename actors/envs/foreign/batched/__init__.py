"""Environments that one call steps: EnvPool's, and those of Gymnasium's vector API."""
