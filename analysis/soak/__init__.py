"""Hours of traffic: series, what drifts, leaks, steps or stalls in them, and the verdict on it."""
