"""Device samples from elsewhere than the endpoint: agents and pages of exporters, read by a process beside the load."""
