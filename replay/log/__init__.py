"""Experience on disk: every acknowledged chunk, and what a restarted server needs beside it."""
