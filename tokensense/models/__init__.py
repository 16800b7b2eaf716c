"""Policies, and the log-probabilities they give to fixed tokens."""
