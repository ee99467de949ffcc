"""The command line: one file per command, each of which imports what it needs when it is called."""
