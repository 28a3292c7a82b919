"""Programs in other languages as the environment of a run."""
