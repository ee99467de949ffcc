"""The device thread and its queue: requests into batches, batches through the runner, answers out."""
