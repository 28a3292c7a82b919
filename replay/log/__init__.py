"""Experience on disk: acknowledged chunks, and the state from which a restarted server continues."""
