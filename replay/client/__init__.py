"""The two clients of the replay server: the actors' writer and the learner's sampler."""
