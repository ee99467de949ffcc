"""Whether a run can be trusted, whether it keeps its objective, and what is said of that."""
