"""What the servers counted and gauged themselves: series over the run, and their figures in a window."""
