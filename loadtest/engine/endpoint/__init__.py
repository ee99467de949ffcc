"""Speaking to an endpoint: one request and its answer, credentials, and what a server says of itself."""
