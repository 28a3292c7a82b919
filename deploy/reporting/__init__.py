"""The log, status, events and figures that a run writes."""
