"""For tests of several folders, to start, watch and disturb: runs, processes, servers and the links between them."""
