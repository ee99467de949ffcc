"""Hosts models behind the Open Inference Protocol; runs where the GPU is."""
