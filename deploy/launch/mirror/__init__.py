"""A copy of what a run needs to go on, in a second folder: `deploy.mirror`."""
