"""The simulators of the robot."""
