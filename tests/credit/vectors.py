"""The worked example of methods/cscr.md section 6; results are rounded there to six digits."""

import numpy as np

from tests.credit.builders import evidence
from tokensense.credit import CATALOGUE
from tokensense.credit.base import adjusted

Z_POS = [0.01, 0.4, 0.02, -0.7, 0.0, -0.05]
Z_NEG = [0.005, 0.25, -0.05, -0.4, -0.002, 0.08]
LOGP = [-0.02, -1.5, -0.3, -2.2, -0.01, -0.7]
ENTROPY = [0.1, 1.6, 0.5, 2.0, 0.05, 0.9]


def credit(name, library="numpy", *, advantage=1.0, settings=None, **arrays):
    """Credit of one rollout of as many tokens as the arrays have."""
    made = {key: np.asarray(array) for key, array in arrays.items()}
    count = next(a.size for a in made.values())
    found = {"length": np.array([count]), "advantage": np.array([advantage]), **made}
    rule = adjusted(CATALOGUE[name], **(settings or {}))
    return np.asarray(rule.assign(evidence(found, library)))
