"""The architecture: who may import whom, what light parts must not load, how large things grow.

`ALLOWED` is read as a table. Its keys are parts of the package (`stats`), or single modules where
one module of a part may do more than the others (`rollouts.generate`); the longest key counts.
What is not in the table fails, in whatever line of a file the import stands.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "tokensense"


class Allowed(NamedTuple):
    """Parts of tokensense and heavy libraries that a part may import, beside itself."""

    parts: set[str]
    heavy: frozenset[str] | set[str] = frozenset()


GROUND = {"schema", "errors", "checks", "segments", "bundled"}
DESCRIPTION = GROUND | {"tasks", "rollouts"}
MODEL = {"torch", "transformers", "accelerate", "gguf"}

ALLOWED: dict[str, Allowed] = {
    # ground: words, errors, checks, arithmetic of ragged arrays
    "schema": Allowed(set()),
    "errors": Allowed(set()),
    "bundled": Allowed(set()),
    "reprs": Allowed(set()),
    "checks": Allowed({"errors"}),
    "segments": Allowed({"errors", "checks"}),
    # upstream: what is sampled and by whom
    "tasks": Allowed({"schema", "errors", "checks"}),
    "models": Allowed({"schema", "errors", "checks", "bundled", "reprs"}, MODEL),
    "rollouts": Allowed(GROUND | {"tasks"}),
    "rollouts.generate": Allowed(GROUND | {"tasks", "models"}, {"torch", "transformers"}),
    "importing": Allowed(DESCRIPTION),
    # the store knows arrays and attributes, not what they mean
    "store": Allowed(GROUND),
    # probes: what is asked is decided without a model; only scoring meets model and store
    "probes": Allowed(DESCRIPTION),
    "probes.node": Allowed(DESCRIPTION | {"store"}),
    "probes.work": Allowed(DESCRIPTION | {"store"}),
    "probes.rescore": Allowed(DESCRIPTION | {"models", "store"}),
    "probes.cost": Allowed(DESCRIPTION | {"models", "store"}),
    "probes.replicas": Allowed(DESCRIPTION | {"models", "store"}),
    "probes.resample": Allowed(DESCRIPTION | {"models"}),
    "probes.ablate": Allowed(DESCRIPTION | {"models"}),
    "probes.gradients": Allowed(DESCRIPTION | {"models"}, {"torch"}),
    "probes.tangents": Allowed({"models"}, {"torch"}),
    "probes.proxies": Allowed(DESCRIPTION | {"models"}, {"torch"}),
    "probes.overlap": Allowed(DESCRIPTION | {"models"}, {"torch"}),
    # downstream: arrays in, results out, never a model
    "stats": Allowed(GROUND, {"statsmodels"}),
    "stats.centers": Allowed(GROUND | {"credit"}),
    "stats.center_results": Allowed(GROUND | {"credit"}),
    "stats.coefficients": Allowed(GROUND | {"credit"}),
    "credit": Allowed(GROUND),
    "adapters": Allowed(GROUND | {"models", "credit", "stats"}, {"torch", "trl", "verl"}),
    "figures": Allowed({"schema", "errors", "checks"}, {"matplotlib"}),
    # the trainer knows no store: rollouts and numbers go to a sink
    "trainer": Allowed(
        GROUND | {"tasks", "models", "rollouts", "probes", "credit", "stats"}, {"torch"}
    ),
    "trainer.memory": Allowed({"models"}, {"torch", "transformers"}),
    # the top puts parts together; two views of what a store holds are too large for `study`
    "flat": Allowed(GROUND | {"rollouts"}),
    "summary": Allowed(GROUND | {"rollouts", "store", "flat"}),
    "screen": Allowed(set()),
    "results": Allowed({"errors", "stats", "reprs"}),
    "view": Allowed(GROUND | {"rollouts", "store", "flat", "stats", "figures"}),
    "centering": Allowed(
        GROUND | {"rollouts", "flat", "models", "probes", "credit", "stats", "store", "study"}
    ),
    "valuing": Allowed(GROUND | {"centering", "models", "probes", "credit", "study"}, {"torch"}),
    "drawing": Allowed(GROUND | {"store", "flat", "stats", "figures"}),
    "generation": Allowed(GROUND | {"tasks", "models", "rollouts"}),
    "ingestion": Allowed({"errors", "models", "rollouts", "importing"}),
    "export": Allowed(GROUND | {"rollouts", "store", "flat"}),
    "padded": Allowed(GROUND, {"torch"}),
    "freezing": Allowed(GROUND | {"rollouts", "store"}),
    "probing": Allowed({"checks", "models", "probes", "store"}),
    "study": Allowed(
        GROUND
        | {"tasks", "models", "rollouts", "store", "stats", "figures", "probing"}
        | {"flat", "freezing", "summary", "generation", "ingestion", "view", "export", "padded"}
        | {"drawing", "reprs", "results", "screen"}
    ),
    "analysis": Allowed(GROUND | {"stats", "store", "flat", "results", "study"}),
    "gathering": Allowed(GROUND | {"credit", "stats"}),
    "assignment": Allowed(GROUND | {"credit", "stats", "store", "study", "gathering"}),
    "demo": Allowed({"errors", "models", "stats", "study", "analysis", "assignment"}),
    "report": Allowed({"figures", "study"}),
    "doctor": Allowed({"errors", "models", "probes", "store"}, {"torch"}),
    # studies lie beside the package, and are found by their files
    "plans": Allowed({"errors"}),
    "submission": Allowed({"errors", "checks"}),
    "cli": Allowed(
        {
            "tokensense",
            "errors",
            "demo",
            "doctor",
            "report",
            "screen",
            "store",
            "importing",
            "plans",
            "submission",
        }
        | {"stats", "trainer", "credit"}
    ),
    "__main__": Allowed({"cli"}),
    "__init__": Allowed(
        {"study", "analysis", "assignment", "centering", "valuing", "models", "figures"}
        | {"credit", "trainer"}
    ),
}
# Importing one of these costs a second or a gigabyte, or ties us to a framework.
HEAVY = {
    *MODEL,
    *("matplotlib", "statsmodels"),
    *("jupyterlab", "trl", "verl", "minicons", "lm_eval", "datasets", "sklearn"),
}
BY_STRING = {"import_module", "__import__", "require_extra"}
LIGHT = ("stats", "credit", "figures", "store", "importing", "tasks")
SOURCES = sorted(PACKAGE.rglob("*.py"))


class Import(NamedTuple):
    """One import: absolute dotted name and its line. A relative one starts with a dot."""

    name: str
    line: int


def module_of(path: Path) -> str:
    """Dotted name below tokensense: `stats.shifts`; `stats.__init__` is named `stats`."""
    names = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(names[:-1] if names[-1] == "__init__" and len(names) > 1 else names)


def part_of(module: str) -> str:
    """The part of the package that a module lies in."""
    return module.partition(".")[0]


def imports(tree: ast.Module) -> Iterator[Import]:
    """All imports of a file: at the top, inside functions, for types only, or by a string."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            source = "." * node.level + (node.module or "")
            # `from tokensense import study` imports tokensense.study
            within = [f"{source}.{alias.name}" for alias in node.names]
            yield from (
                Import(n, node.lineno) for n in (within if source == "tokensense" else [source])
            )
        elif isinstance(node, ast.Call) and called(node) in BY_STRING:
            yield from (
                Import(str(a.value), a.lineno) for a in node.args[:1] if isinstance(a, ast.Constant)
            )


def called(node: ast.Call) -> str:
    """Last name of what is called."""
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def rule(module: str) -> Allowed | None:
    """The most specific line of the table, None where there is none."""
    return ALLOWED.get(module) or ALLOWED.get(part_of(module))


def offences(module: str, tree: ast.Module) -> list[str]:
    """What a module imports and must not."""
    allowed = rule(module)
    if allowed is None:
        return [f"{module}: not in the table of tests/test_layers.py"]
    own = part_of(module)
    wrong = []
    for name, line in imports(tree):
        top, *below = name.split(".")
        if name.startswith("."):
            wrong.append(f"{module}:{line}: relative import {name}")
        elif top == "tokensense":
            part = below[0] if below else "tokensense"
            if part != own and part not in allowed.parts:
                wrong.append(f"{module}:{line}: {own} may not import tokensense.{part}")
        elif top in HEAVY - allowed.heavy:
            wrong.append(f"{module}:{line}: {own} may not import {top}")
    return wrong


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_imports_are_in_the_table(path: Path):
    assert offences(module_of(path), ast.parse(path.read_text())) == []


@pytest.mark.parametrize(
    ("module", "code", "found"),
    [
        ("stats.shifts", "import torch", "stats may not import torch"),
        ("stats.shifts", "def f():\n    from torch.nn import Linear", "stats may not import torch"),
        (
            "stats.shifts",
            "from tokensense.models.policy import Policy",
            "stats may not import tokensense.models",
        ),
        ("stats.shifts", "from tokensense import models", "stats may not import tokensense.models"),
        ("stats.shifts", "import tokensense", "stats may not import tokensense.tokensense"),
        ("stats.shifts", "from .floors import x", "relative import .floors"),
        ("store.layout", "importlib.import_module('torch')", "store may not import torch"),
        ("models.policy", "import trl", "models may not import trl"),
        ("rollouts.kinds", "import torch", "rollouts may not import torch"),
        (
            "schema",
            "from tokensense.errors import SchemaError",
            "schema may not import tokensense.errors",
        ),
        ("cli", "def run():\n    import torch", "cli may not import torch"),
        ("plots.bars", "import math", "not in the table"),
    ],
)
def test_a_forbidden_import_is_found(module: str, code: str, found: str):
    (offence,) = offences(module, ast.parse(code))
    assert found in offence


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("models.policy", "import torch\nfrom transformers import AutoTokenizer"),
        ("rollouts.generate", "import torch\nfrom tokensense.models.policy import Policy"),
        (
            "stats.shifts",
            "from tokensense.stats.floors import x\nfrom tokensense import segments\nimport scipy",
        ),
        ("cli", "def run():\n    import tokensense as ts"),
    ],
)
def test_an_allowed_import_passes(module: str, code: str):
    assert offences(module, ast.parse(code)) == []


def test_the_table_has_no_circle_and_no_dead_line():
    modules = {module_of(path) for path in SOURCES}
    parts = {part_of(module) for module in modules}
    assert {key for key in ALLOWED if key not in modules} == set()
    needs: dict[str, set[str]] = {part: set() for part in parts}
    for key, allowed in ALLOWED.items():
        needs[part_of(key)] |= allowed.parts - {part_of(key), "tokensense"}
    while needs:
        free = {part for part, below in needs.items() if not below & set(needs)}
        assert free, f"these parts import each other in a circle: {sorted(needs)}"
        needs = {part: below for part, below in needs.items() if part not in free}


def loaded(code: str, watched: set[str]) -> set[str]:
    """Run code in a fresh interpreter; give the watched libraries that it loaded."""
    tail = f"\nimport sys\nprint('LOADED', *({watched!r} & set(sys.modules)))"
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code + tail],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return set(ran.stdout.rpartition("LOADED")[2].split())


def test_the_watch_sees_what_is_loaded():
    assert loaded("import json", {"json", "xarray"}) == {"json"}


@pytest.mark.parametrize("part", LIGHT)
def test_light_parts_never_load_torch(part: str):
    # Not only by their own lines: by nothing that they import, either.
    modules = [module_of(path) for path in SOURCES if part_of(module_of(path)) == part]
    code = "\n".join(f"import tokensense.{module}" for module in modules)
    assert loaded(code, MODEL) == set()


def test_ground_loads_no_heavy_library():
    code = "\n".join(f"import tokensense.{part}" for part in sorted(GROUND))
    assert loaded(code, HEAVY) == set()


def test_help_loads_no_heavy_library():
    code = (
        "import sys\n"
        "from tokensense.cli import app\n"
        "sys.argv = ['tokensense', '--help']\n"
        "try:\n    app()\n"
        "except SystemExit as leave:\n    assert not leave.code, leave.code\n"
        "else:\n    raise AssertionError('--help must leave')\n"
    )
    watched = HEAVY | {"numpy", "scipy", "pandas", "xarray", "zarr"}
    assert loaded(code, watched) == set()


# --- size ----------------------------------------------------------------------------------------

MODULE_LINES = 400
BODY_LINES = 60


def bodies(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Name and lines of each function's body, its docstring left out."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            has_text = ast.get_docstring(node, clean=False) is not None
            body = node.body[1:] if has_text else node.body
            yield node.name, (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_modules_and_bodies_stay_small(path: Path):
    text = path.read_text()
    assert len(text.splitlines()) <= MODULE_LINES
    assert {name: n for name, n in bodies(ast.parse(text)) if n > BODY_LINES} == {}


def test_a_body_is_counted_without_its_docstring():
    text = '    """Say.\n\n    More.\n    """\n'
    code = f"def f(\n    x: int,\n) -> int:\n{text}    y = x\n\n    return y\n"
    assert list(bodies(ast.parse(code))) == [("f", 3)]
