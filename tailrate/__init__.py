"""tailrate: load tests of live inference endpoints, with the proof that the harness was not the bottleneck.

`serve`, `loadtest` and `analysis` are links to the folders beside this one.
"""
