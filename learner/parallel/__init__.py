"""Data-parallel training: several learner processes that train one policy."""
