"""What is broken on purpose: at the server by its fault interface, and on the load side."""
