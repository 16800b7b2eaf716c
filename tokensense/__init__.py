"""Which tokens of a reasoning trace drive credit, how we know, and whether training on it helps.

`import tokensense as ts` is the whole public face. Names are looked up on first use, so that the
import costs nothing and `tokensense --help` answers at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokensense import figures
    from tokensense.analysis import analyze
    from tokensense.assignment import assign_credit
    from tokensense.centering import centers
    from tokensense.credit import CATALOGUE
    from tokensense.models.policy import load_policy
    from tokensense.study import Study, open_studies
    from tokensense.trainer.loop import train
    from tokensense.valuing import learning_values

__all__ = [
    "CATALOGUE",
    "Study",
    "analyze",
    "assign_credit",
    "centers",
    "figures",
    "learning_values",
    "load_policy",
    "open_studies",
    "train",
]

_HOME = {
    "CATALOGUE": "tokensense.credit",
    "Study": "tokensense.study",
    "analyze": "tokensense.analysis",
    "assign_credit": "tokensense.assignment",
    "centers": "tokensense.centering",
    "learning_values": "tokensense.valuing",
    "load_policy": "tokensense.models.policy",
    "open_studies": "tokensense.study",
    "train": "tokensense.trainer.loop",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 (the type is that of the name looked up)
    if name == "figures":
        return import_module("tokensense.figures")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'tokensense' has no attribute {name!r}; it has {__all__}")


def __dir__() -> list[str]:
    return __all__
