"""The one judge: what the arrivals of a window say to an objective. Load and report both ask here.

Beside it, what a model says of the knee, which the load asks for and the planning answers.
"""
