"""Drives traffic at an endpoint from a laptop: no torch, no ray."""
