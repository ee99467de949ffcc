"""From measured runs to fleets: how many replicas, joules and euros a rate takes. Nothing outside imports this
folder but its page and the command line.
"""
