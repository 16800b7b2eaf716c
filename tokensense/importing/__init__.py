"""Rollouts that others wrote."""
