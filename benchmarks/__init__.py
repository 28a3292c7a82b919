"""Every figure that the README quotes, and the peers it is compared with."""
