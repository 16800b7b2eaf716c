"""Problems with checkable answers: where they come from, and how answers are checked.

`CATALOGUE` names every source of problems that is a published file, `PLANTED` every task whose
problems are drawn and whose tokens are labelled.
"""

from functools import partial

from tokensense.tasks.math import read_problems
from tokensense.tasks.planted import PlantedTask, arithmetic_task, tables_task

CATALOGUE = {
    "aime": partial(read_problems, format="aime"),
    "dapo": partial(read_problems, format="dapo"),
    "gsm8k": partial(read_problems, format="gsm8k"),
    "math": partial(read_problems, format="math"),
}
PLANTED: dict[str, PlantedTask] = {
    "arithmetic": arithmetic_task(),
    "tables": tables_task(),
}

__all__ = ["CATALOGUE", "PLANTED"]
