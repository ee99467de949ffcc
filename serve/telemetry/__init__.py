"""Device samples: read from NVML or the host, kept for a while, served with counters."""
