"""HTTP/2 as a client of many exchanges needs it: frames, compressed headers, connections with streams, a pool of them."""
