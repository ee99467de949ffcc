"""A run folder read into arrays and frames: rows, device samples, the time axis, one part at a time."""
