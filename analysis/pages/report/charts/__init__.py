"""The report's charts, one file each, from the figures of its view."""
