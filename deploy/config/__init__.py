"""A run's configuration: its sections, its layers, its command-line options."""
