"""The robot: an industrial arm that reaches for targets, with or without physics."""
