"""What tests of several folders start, watch and disturb: runs, processes, servers and the links between them."""
