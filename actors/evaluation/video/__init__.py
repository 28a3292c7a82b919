"""Pictures of episodes: in a window, in a file, and with the policy's figures beside them."""
