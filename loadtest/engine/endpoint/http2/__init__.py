"""HTTP/2 as a client of many exchanges needs it: frames, header blocks, connections with streams, a pool of them."""
