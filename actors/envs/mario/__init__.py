"""Super Mario Bros., with a choice of two emulators."""
