"""Rows on disk: the run folder, its segments and manifest, device samples, and a run that goes on after a stop."""
