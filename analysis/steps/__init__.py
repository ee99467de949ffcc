"""What was measured in each step: latency, rates, energy, capacity, pairs of variants and the effects of faults."""
