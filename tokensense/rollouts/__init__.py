"""Sampled responses, frozen."""
