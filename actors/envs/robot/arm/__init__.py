"""The arm: its URDF file, kinematics, and targets within its reach."""
