"""The robot: an industrial arm that reaches for targets, by physics or by kinematics alone."""
