"""The page of a plan: its answer, the curves behind it, and controls that work it out anew in the browser."""
