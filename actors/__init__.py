"""Own simulators and produce experience. Clients of replay (experience) and of the learner (weights)."""
