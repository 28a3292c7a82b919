"""What operators and other people ask of a run that is up."""
