"""One file per command; the function of its name is the command."""
