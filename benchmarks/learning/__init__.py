"""Learning curves and the suites that make them: TOML files for `headrace suite`, peers, results."""
