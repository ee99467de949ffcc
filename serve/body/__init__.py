"""Bodies of requests and of results, both ways: a JSON header, and tensors as bytes behind it or as lists in it.

Names are those of `serve.wire`. Standard library and numpy only: `serve` answers with it, `loadtest` asks with it.
"""
