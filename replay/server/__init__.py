"""The replay process: its sockets' two sides, actors and learners, and the table between them."""
