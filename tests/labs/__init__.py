"""Stand-ins for machines that are not here."""
