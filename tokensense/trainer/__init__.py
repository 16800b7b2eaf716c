"""Training on token credit: an instrument for testing findings, not a framework."""
