"""The public face: one written list, looked up on first use."""

import importlib
import inspect
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import tokensense

ROOT = Path(tokensense.__file__).parents[1]
# Design section 11, and `learning_values`, which rules and the token view read.
PUBLIC = [
    *("CATALOGUE", "Study", "analyze", "assign_credit", "centers"),
    *("figures", "learning_values", "load_policy", "open_studies", "train"),
]


def public(names: list[str]) -> list[str]:
    return sorted(name for name in names if not name.startswith("_"))


def test_the_public_names_are_the_written_list():
    assert public(dir(tokensense)) == PUBLIC
    assert tokensense.__all__ == PUBLIC


def test_importing_parts_adds_no_public_name():
    for part in ("schema", "segments", "stats.shifts", "store.archive"):
        importlib.import_module(f"tokensense.{part}")
    assert public(dir(tokensense)) == PUBLIC


def test_every_public_name_is_there_and_documented():
    for name in PUBLIC:
        found = getattr(tokensense, name)
        assert (inspect.getdoc(found) or "").strip(), f"{name} has no docstring"


def test_no_function_shares_the_name_of_a_part():
    # Importing `tokensense.x` binds x on the package: a function of that name would be lost by it.
    parts = {path.stem for path in (ROOT / "tokensense").iterdir() if path.suffix in ("", ".py")}
    for name in set(PUBLIC) & parts:
        assert getattr(tokensense, name) is importlib.import_module(f"tokensense.{name}")
        assert isinstance(getattr(tokensense, name), ModuleType)


def test_an_unknown_name_is_an_attribute_error_that_lists_the_names():
    with pytest.raises(AttributeError, match=r"'shifts'.*" + ".*".join(PUBLIC)):
        tokensense.shifts  # noqa: B018 (the look-up is what raises)


def test_the_import_alone_loads_nothing_of_ours_or_heavy():
    code = (
        "import sys, tokensense; "
        "print(*(m for m in sys.modules if m.startswith('tokensense.') or m in "
        "('torch', 'transformers', 'matplotlib', 'xarray', 'numpy')))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == []
