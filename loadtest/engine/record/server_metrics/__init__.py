"""What the servers count and gauge themselves, read as Prometheus text beside the load and kept with its rows."""
