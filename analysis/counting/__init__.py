"""The one pass over a run's rows: what falls into which step, window and bin of latency, counted once for every
table.
"""
