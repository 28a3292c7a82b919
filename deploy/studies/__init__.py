"""Many runs one after the other or at once: compared (suite) or searched (sweep)."""
