"""Named sets of conditions, and scoring under them."""

from tokensense.probes.conditions import CATALOGUE

__all__ = ["CATALOGUE"]
