"""Problems with checkable answers: where they come from, and how answers are checked.

`CATALOGUE` names every source of problems that is a published file; `planted.PLANTED` every task
whose problems are drawn and whose tokens are labelled. That one stands apart: the workers that
check answers import this package, and do without NumPy.
"""

from functools import partial

from tokensense.tasks.math import read_problems

CATALOGUE = {
    "aime": partial(read_problems, format="aime"),
    "dapo": partial(read_problems, format="dapo"),
    "gsm8k": partial(read_problems, format="gsm8k"),
    "math": partial(read_problems, format="math"),
}

__all__ = ["CATALOGUE"]
