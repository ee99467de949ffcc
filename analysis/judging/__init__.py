"""The one judge: what the arrivals of a window say to an objective. Load and report both ask here."""
