"""Sockets whose answers come in pieces, each with the instant at which it could be read, over any version of HTTP."""
