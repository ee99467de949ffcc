"""What a fleet does under a rate: replicas, queues and autoscaler, event by event, and queueing theory to hold it
against.
"""
