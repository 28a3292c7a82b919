"""The replay server with writers and samplers around it."""
