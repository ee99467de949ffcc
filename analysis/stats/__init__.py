"""Mathematics that knows nothing of load tests: intervals, trends, change points, level shifts."""
