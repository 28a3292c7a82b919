"""The sinks that come with Headrace, and what passes the figures of a run to them."""
