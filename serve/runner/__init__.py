"""A model made ready on a device: compiled or loaded from the cache, warmed up, checked against eager, then run."""
