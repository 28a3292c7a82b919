"""The simulators that move K arms."""
