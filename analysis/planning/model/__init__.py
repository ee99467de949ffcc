"""What one replica does, fitted to runs: how it batches, how long a batch takes, and how far to trust that."""
