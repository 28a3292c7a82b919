"""Super Mario Bros. on either of two emulators."""
