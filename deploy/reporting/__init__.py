"""What a run shows: log, status, metrics."""
