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
    from tokensense.models.policy import load_policy
    from tokensense.study import Study, open_studies

__all__ = ["Study", "analyze", "assign_credit", "figures", "load_policy", "open_studies"]

_HOME = {
    "Study": "tokensense.study",
    "analyze": "tokensense.analysis",
    "assign_credit": "tokensense.assignment",
    "load_policy": "tokensense.models.policy",
    "open_studies": "tokensense.study",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 (the type is that of the name looked up)
    if name == "figures":
        return import_module("tokensense.figures")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'tokensense' has no attribute {name!r}; it has {__all__}")


def __dir__() -> list[str]:
    return __all__
