"""Other people's software as contestants of `headrace suite`, each run by the Python of an environment of its own."""
