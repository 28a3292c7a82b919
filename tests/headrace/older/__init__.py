"""Files that older versions exported."""
