"""Sending on time: the schedule's share of each worker, its timer and priority, and proof that it kept up."""
