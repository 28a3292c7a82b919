"""A search over the settings of runs: each trial is a run of its own, as a child process; Optuna chooses what to try."""
