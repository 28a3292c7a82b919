"""The built-in networks as data: described and initialised without torch."""
