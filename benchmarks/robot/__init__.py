"""PPO on the robot, beside Stable-Baselines3's, and what the preset reaches."""
