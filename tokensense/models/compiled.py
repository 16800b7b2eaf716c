"""Fused code for the two hot parts of a score: decoder layers, and what follows the head's product.

Reads  a model, or a function over tensors.
Gives  can_compile, compiled, compiled_layers, left_alone.
Source torch.compile, region by region: all layers of a model share one compiled code, so that the
       first call costs seconds (15 to 40 on a busy core), not minutes.

Attention stays as it is: it runs between the compiled parts. Compiled and plain code differ in the
last bits (float32: below 1e-4 nats), so which of the two ran is part of a score's settings. Never
for gradients in forward mode.
"""

import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import ParamSpec, TypeVar

import torch
from transformers import PreTrainedModel

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@cache
def can_compile() -> bool:
    """Whether a C++ compiler is here (`$CXX`, else g++); says once if there is none."""
    name = os.environ.get("CXX", "g++")
    if shutil.which(name):
        return True
    warnings.warn(
        f"Scoring bfloat16 fast on a CPU needs a C++ compiler; `{name}` is not on the PATH. Plain "
        "code runs instead, about 1.3 times slower; install g++ or set CXX.",
        stacklevel=2,
    )
    return False


@cache
def compiled(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The compiled form of a function, made at its first call and kept; sizes may vary."""
    found: Callable[Arguments, Result] = torch.compile(function, dynamic=True)
    return found


@cache
def left_alone(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """A function that compiled code calls as it is."""
    found: Callable[Arguments, Result] = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
    return found


@contextmanager
def compiled_layers(model: PreTrainedModel) -> Iterator[None]:
    """Compiled decoder layers in a model; taken out again, so that training goes on as before.

    Which modules are layers is what the model itself says for splitting over devices. What was
    compiled is kept by torch and found again by the next call.
    """
    names = set(model._no_split_modules or ())
    layers = [module for module in model.modules() if type(module).__name__ in names]
    for layer in layers:
        layer.compile(dynamic=True)
    try:
        yield
    finally:
        for layer in layers:
            layer._compiled_call_impl = None
