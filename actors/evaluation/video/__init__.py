"""Pictures of episodes: in a window, in a file, and with what the policy thinks beside them."""
