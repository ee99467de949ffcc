"""From measured runs to fleets: how many replicas, watts and euros a rate takes. Nothing outside imports this room but
its page and the command line.
"""
