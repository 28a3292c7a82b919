"""From what was typed to a run that a supervisor can be put in charge of."""
