"""HTTP/1.1 as a client of many exchanges needs it: kept connections, answers whole or in pieces."""
