"""The wire served: HTTP in and out, the gateway before the replicas, access, and faults on demand."""
