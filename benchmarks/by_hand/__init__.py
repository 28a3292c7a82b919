"""Updates as one writes them for a single experiment: what the learner is compared with."""
