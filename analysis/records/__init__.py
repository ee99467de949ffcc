"""Wire 2: the run folder, by which `loadtest` hands `analysis` its results: its rows, manifest and files, and the
words for an objective. No arithmetic, and nothing but the standard library: who writes one needs no pandas.

Clocks: every `*_ns` in `requests` is the load generator's wall clock, fixed to its monotonic clock once at the start of
the run. `devices.time_ns` is the device host's wall clock; `clock` in the manifest maps one to the other.
"""
