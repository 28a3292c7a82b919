"""What the code computed before it was rearranged, figure by figure."""
