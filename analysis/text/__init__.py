"""Numbers and tables as text, once for all that speaks."""
