"""Credit rules: evidence -> credit per token, one function for analysis and training.

Never imports torch: tensors are recognized by what they can do. `CATALOGUE` names every rule.
"""

from tokensense.credit.catalogue import CATALOGUE

__all__ = ["CATALOGUE"]
