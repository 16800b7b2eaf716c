"""What each token of a response is: stub, rules follow."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int8


def classify(pieces: Sequence[bytes], *, question: str) -> Int8[np.ndarray, " token"]:
    """Kind of each token."""
    del question
    return np.zeros(len(pieces), np.int8)
