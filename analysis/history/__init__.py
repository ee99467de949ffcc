"""Many runs: their figures in the order of time, what was usual, and what is worse or better than that."""
