"""Files of a run that several processes lock, or that people and disks may damage."""
