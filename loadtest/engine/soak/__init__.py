"""Hours: chapters, minutes, the process's own usage, and starting a soak by itself."""
