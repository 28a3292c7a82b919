"""Commands that steer a run that is up."""
