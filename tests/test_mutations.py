"""Seeded one-line changes to the arithmetic that everything rests on: the tests catch each of them.

A mutant changes one operator, number, bound or function in one line of a copy of the package; the
tests of that module then run on the copy and must fail. Which changes can be made is decided by
`edits`, which of them are made by the seed.

Left out, because no test can or should see them: annotations, decorators, docstrings and messages
(tests/test_docstrings.py reads those), and the changes in `EXCLUDED`, each with its reason.
"""

import ast
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
SEED = 20
SECONDS = 500  # a run that is cut off proves nothing, so that the test fails


class Target(NamedTuple):
    """A module, the functions of it that are changed (all if none is named), and its tests."""

    module: str
    functions: frozenset[str]
    tests: tuple[str, ...]
    mutants: int


class Edit(NamedTuple):
    """Replace bytes [start, end) of a line (from 1) by `text`."""

    line: int
    start: int
    end: int
    text: str


class Mutant(NamedTuple):
    """A changed source, and the one line that differs."""

    line: int
    before: str
    after: str
    source: str


# The shift by one between a row of a model's output and the token that it predicts is in `plan`.
TARGETS = {
    "segments": Target("segments.py", frozenset(), ("tests/test_segments.py",), 8),
    "shifts": Target("stats/shifts.py", frozenset(), ("tests/stats/test_shifts.py",), 8),
    "scorer": Target(
        "models/plan.py",
        frozenset({"predictor_rows", "_fed"}),
        ("tests/models/test_plan.py", "tests/models/test_scorer.py"),
        4,
    ),
}

# Line after the change -> why no test has to see it.
COPY = "a copy has the same values"
EXCLUDED = {
    "flat = xp.reshape(xp.astype(values, wide, copy=True), (rows * values.shape[-1],))": COPY,
    "return self.xp.astype(rows, self.dtype, copy=True)": COPY,
    "by_value = flat.xp.argsort(flat.values, stable=False)": "ties have one rank and one quantile",
    "return branch.context - branch.response[:-1]": "tuples have no difference: always an error",
}

SWAPS = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}
NAMES = {
    "min": "max",
    "max": "min",
    "minimum": "maximum",
    "maximum": "minimum",
    "floor": "ceil",
    "any": "all",
    "all": "any",
    "amin": "amax",
    "amax": "amin",
    "zeros": "ones",
    "ones": "zeros",
}
LIBRARIES = {"np", "xp", "math"}
REMOVED = {"abs", "sqrt", "expm1", "exp", "cumsum", "sign"}  # f(x) becomes x


def edits(tree: ast.AST, functions: frozenset[str]) -> Iterator[Edit]:
    """All one-line changes of the functions named, or of all functions and constants."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and (not functions or node.name in functions):
            body = node.body
        elif isinstance(node, ast.Module) and not functions:
            body = [part for part in node.body if isinstance(part, ast.Assign)]
        else:
            continue
        for statement in body:
            for inner in _executed(statement):
                yield from _changes(inner)


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """A node and what is below it, without annotations, messages and inner functions."""
    yield node
    # An axis of `shape` that is not there is an error in every call: catching it proves nothing.
    shape = isinstance(node, ast.Subscript) and getattr(node.value, "attr", "") == "shape"
    if shape and not isinstance(node.slice, ast.Slice):
        return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            skipped = (ast.Raise, ast.JoinedStr, ast.FunctionDef)
            if isinstance(child, ast.AST) and not isinstance(child, skipped):
                yield from _executed(child)


def _changes(node: ast.AST) -> Iterator[Edit]:
    """The changes of one node. Positions are of the operator, number or name itself."""
    if isinstance(node, ast.BinOp):
        yield from _between(node.left, node.op, node.right)
    elif isinstance(node, ast.BoolOp):
        yield from _between(node.values[0], node.op, node.values[1])
    elif isinstance(node, ast.Compare):
        yield from _between(node.left, node.ops[0], node.comparators[0])
    elif isinstance(node, ast.UnaryOp):
        length = len("not") if isinstance(node.op, ast.Not) else 1
        yield Edit(node.lineno, node.col_offset, node.col_offset + length, "")
    elif isinstance(node, ast.Constant):
        yield from _other_constant(node)
    elif isinstance(node, ast.Slice):
        yield from _shifted(node)
    elif isinstance(node, ast.Attribute):
        if LIBRARIES & {getattr(node.value, "id", ""), getattr(node.value, "attr", "")}:
            yield from _other_name(node, node.attr)
    elif isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name):
            yield from _other_name(node.func, node.func.id)
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in REMOVED and node.func.lineno == node.func.end_lineno:
            start = node.func.col_offset
            yield Edit(node.lineno, start, node.func.end_col_offset or start, "")


def _shifted(node: ast.Slice) -> Iterator[Edit]:
    """A computed bound one further and one nearer; constant bounds change as numbers do."""
    for bound in (node.lower, node.upper):
        if bound is not None and not isinstance(bound, ast.Constant | ast.UnaryOp):
            end = bound.end_col_offset or 0
            yield from (Edit(bound.end_lineno or 0, end, end, by) for by in (" + 1", " - 1"))


def _other_name(node: ast.Attribute | ast.Name, name: str) -> Iterator[Edit]:
    """The opposite function, such as max for min."""
    if name in NAMES:
        end = node.end_col_offset or 0
        yield Edit(node.end_lineno or 0, end - len(name), end, NAMES[name])


def _between(left: ast.expr, operator: ast.AST, right: ast.expr) -> Iterator[Edit]:
    """Swap the operator that stands between two operands of one line."""
    if type(operator) in SWAPS and left.end_lineno == right.lineno:
        # `text` names what to look for; `mutants` finds it between the operands.
        yield Edit(
            right.lineno, left.end_col_offset, right.col_offset, "\0".join(SWAPS[type(operator)])
        )


def _other_constant(node: ast.Constant) -> Iterator[Edit]:
    """Another truth value, the next whole number, twice the number, the opposite reduction."""
    value = node.value
    if isinstance(value, bool):
        new = str(not value)
    elif isinstance(value, int):
        new = str(value + 1)
    elif isinstance(value, float):
        new = repr(2 * value + (value == 0))
    elif value in ("amin", "amax"):
        new = f'"{NAMES[value]}"'
    else:
        return
    yield Edit(node.lineno, node.col_offset, node.end_col_offset or 0, new)


def mutants(source: str, functions: frozenset[str] = frozenset()) -> list[Mutant]:
    """All changed versions of a source, without those in `EXCLUDED`."""
    found = []
    for line, start, end, text in edits(ast.parse(source), functions):
        lines = source.splitlines(keepends=True)
        old = lines[line - 1].encode()  # ast counts bytes
        before, swapped, after = text.partition("\0")
        new = (
            old[start:end].replace(before.encode(), after.encode(), 1) if swapped else text.encode()
        )
        lines[line - 1] = (old[:start] + new + old[end:]).decode()
        found.append(Mutant(line, old.decode().strip(), lines[line - 1].strip(), "".join(lines)))
    return found


def observable(target: Target) -> list[Mutant]:
    """Mutants of a target that a test has to see."""
    source = (ROOT / "tokensense" / target.module).read_text()
    return [m for m in mutants(source, target.functions) if m.after not in EXCLUDED]


def chosen(target: Target) -> list[Mutant]:
    """The seeded sample, in the order of the source."""
    sites = observable(target)
    picked = random.Random(SEED).sample(range(len(sites)), target.mutants)
    return [sites[i] for i in sorted(picked)]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, its tests and the test settings in a folder of their own."""
    folder = tmp_path_factory.mktemp("mutants")
    without = shutil.ignore_patterns("__pycache__", "*.zarr")
    for part in ("tokensense", "tests"):
        shutil.copytree(ROOT / part, folder / part, ignore=without)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def run_tests(folder: Path, tests: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Run test files on the copy, up to the first failure."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, "--hypothesis-profile=mutants", *tests],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )


def survives(folder: Path, target: Target, source: str) -> str:
    """Run the tests of a target on a changed source; give pytest's last lines if they all pass."""
    path = folder / "tokensense" / target.module
    kept = path.read_text()
    path.write_text(source)
    try:
        ran = run_tests(folder, target.tests)
    finally:
        path.write_text(kept)
    # 1: a test failed; 2: the module could not even be imported. 4 and 5: our own command is wrong.
    assert ran.returncode in (0, 1, 2), ran.stdout + ran.stderr
    return ran.stdout[-400:] if ran.returncode == 0 else ""


SAMPLE = [(name, mutant) for name, target in TARGETS.items() for mutant in chosen(target)]
# One of each in every test run, against the first test file alone.
QUICK = [[pair for pair in SAMPLE if pair[0] == name][-1] for name in TARGETS]


def title(value: object) -> str:
    """Name of a parametrized case: `segments`, or the line and the change."""
    return f"{value.line}: {value.after}" if isinstance(value, Mutant) else str(value)


def test_twenty_lines_are_changed():
    assert len(SAMPLE) == 20
    assert len({(name, mutant.after) for name, mutant in SAMPLE}) == 20


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_every_change_is_one_line_of_running_python(target: Target):
    source = (ROOT / "tokensense" / target.module).read_text()
    for mutant in mutants(source, target.functions):
        compile(mutant.source, target.module, "exec")
        pairs = zip(source.splitlines(), mutant.source.splitlines(), strict=True)
        assert [i for i, (a, b) in enumerate(pairs, start=1) if a != b] == [mutant.line]


def test_every_exclusion_is_still_a_change_that_can_be_made():
    made = set()
    for target in TARGETS.values():
        source = (ROOT / "tokensense" / target.module).read_text()
        made |= {mutant.after for mutant in mutants(source, target.functions)}
    assert set(EXCLUDED) - made == set()


def test_changes_of_a_line_worked_out():
    source = "def f(x: int = 3) -> int:\n    return max(x[a:], -1) <= 2.0\n"
    assert [mutant.after for mutant in mutants(source)] == [
        "return max(x[a:], -1) < 2.0",
        "return min(x[a:], -1) <= 2.0",
        "return max(x[a + 1:], -1) <= 2.0",
        "return max(x[a - 1:], -1) <= 2.0",
        "return max(x[a:], 1) <= 2.0",
        "return max(x[a:], -2) <= 2.0",
        "return max(x[a:], -1) <= 4.0",
    ]


@pytest.mark.parametrize(("name", "mutant"), QUICK, ids=title)
def test_one_change_of_each_module_is_caught(name: str, mutant: Mutant, copy: Path):
    target = TARGETS[name]
    assert not survives(copy, target._replace(tests=target.tests[:1]), mutant.source)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_the_unchanged_copy_passes(target: Target, copy: Path):
    # Without this, a copy that cannot run at all would catch every change.
    assert survives(copy, target, (copy / "tokensense" / target.module).read_text())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mutant"), SAMPLE, ids=title)
def test_every_seeded_change_is_caught(name: str, mutant: Mutant, copy: Path):
    passed = survives(copy, TARGETS[name], mutant.source)
    assert not passed, f"{mutant.before!r} became {mutant.after!r}, and all tests passed: {passed}"
