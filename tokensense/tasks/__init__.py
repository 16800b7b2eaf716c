"""Problems with checkable answers: where they come from, and how answers are checked.

`CATALOGUE` names every source of problems that is a published file.
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
