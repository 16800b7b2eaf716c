"""What the docstrings and messages must say, read from the sources.

1. Every module, public class, function, method and property has a docstring.
2. `Raises` names exactly the errors that a caller can meet. Needed are those raised in the body, in
   private functions of the same module that it calls, and by the checks of `tokensense.checks`.
   Allowed beyond that are those that the public functions it calls say they raise.
3. A message says what was needed, what came and what to do: it holds at least one value and two
   parts (divided by `. `, `; ` or `: `), or three parts where there is no value to name.
4. Users' mistakes are our errors: no bare ValueError, TypeError, RuntimeError and the like.

Examples in docstrings are run by pytest itself (`--doctest-modules`).
"""

import ast
import builtins
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tokensense import errors

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "tokensense"
SOURCES = sorted(PACKAGE.rglob("*.py"))
OURS = {name for name in vars(errors) if name.endswith("Error")}
# Protocols of the language, and leaving a program: these are not about a user's input.
OTHERS = {
    *("AttributeError", "KeyboardInterrupt", "NotImplementedError", "StopIteration"),
    *("SystemExit", "Exit", "BadParameter", "AssertionError", "TimeoutError", "EOFError"),
}
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Described(NamedTuple):
    """A public thing of a module: its dotted name inside the module, and its node."""

    name: str
    node: Function | ast.ClassDef


class Source:
    """One parsed module; by last name its private functions and methods of private classes."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.tree = ast.parse(text)
        self.private: dict[str, list[Function]] = {}
        self.tables: dict[str, list[ast.expr]] = {}
        for part in self.tree.body:
            if isinstance(part, ast.Assign | ast.AnnAssign) and part.value is not None:
                target = part.target if isinstance(part, ast.AnnAssign) else part.targets[0]
                self.tables[_last(target)] = [part.value]
        self._collect(self.tree, hidden=False)

    def _collect(self, parent: ast.AST, *, hidden: bool) -> None:
        for node in ast.iter_child_nodes(parent):
            below = hidden
            if isinstance(node, Function | ast.ClassDef):
                below = hidden or node.name.startswith("_")
            if isinstance(node, Function) and below:
                self.private.setdefault(node.name, []).append(node)
            self._collect(node, hidden=below)

    def public(self) -> Iterator[Described]:
        """Public classes and functions of the module, and the methods of public classes."""
        yield from self._public(self.tree.body, "")

    def _public(self, body: list[ast.stmt], prefix: str) -> Iterator[Described]:
        for node in body:
            if not isinstance(node, Function | ast.ClassDef) or node.name.startswith("_"):
                continue
            if {"overload", "setter"} & {_last(mark) for mark in node.decorator_list}:
                continue
            yield Described(prefix + node.name, node)
            if isinstance(node, ast.ClassDef):
                yield from self._public(node.body, f"{prefix}{node.name}.")


class Message(NamedTuple):
    """One `raise` of one of our errors with the expression of its message."""

    error: str
    line: int
    text: ast.expr | None


def _last(node: ast.expr | None) -> str:
    """Last name of an expression: `f`, `x.f` and `x.f(...)` all give "f"."""
    if isinstance(node, ast.Call):
        return _last(node.func)
    return getattr(node, "attr", getattr(node, "id", ""))


def calls(node: ast.AST) -> set[str]:
    """Last names of everything that is called."""
    return {_last(inner) for inner in ast.walk(node) if isinstance(inner, ast.Call)}


def names(node: ast.AST) -> set[str]:
    """Last names of everything used, called on the spot or handed on (`pool.map(self.check)`)."""
    return {_last(inner) for inner in ast.walk(node) if isinstance(inner, ast.Attribute | ast.Name)}


def raised(node: ast.AST) -> set[str]:
    """Last names of everything that is raised by name; a bare or re-raised error has none."""
    found = {_last(inner.exc) for inner in ast.walk(node) if isinstance(inner, ast.Raise)}
    return {name for name in found if name[:1].isupper() or name.startswith("_")}


def documented(node: ast.AST) -> set[str] | None:
    """Names in the `Raises` section, None where there is no such section."""
    text = ast.get_docstring(node) if isinstance(node, Function | ast.ClassDef) else None
    match = re.search(r"^Raises:\n((?:    .*\n|\n)*)", (text or "") + "\n", flags=re.MULTILINE)
    return match and set(re.findall(r"^    ([\w.]+):", match[1], flags=re.MULTILINE))


def checks_raise() -> dict[str, set[str]]:
    """What each check of tokensense.checks says that it raises."""
    source = Source("checks", (PACKAGE / "checks.py").read_text())
    return {item.name: documented(item.node) or set() for item in source.public()}


def needed(source: Source, node: ast.AST, checks: dict[str, set[str]]) -> set[str]:
    """Errors of ours that a caller meets: in the body, in private helpers, and by checks."""
    errors_found, seen, waiting = set(), set(), [node]
    while waiting:
        current = waiting.pop()
        seen.add(id(current))
        # What is caught inside is not met outside; rarely so few lines that names collide.
        errors_found |= raised(current) & OURS
        for name in calls(current):
            errors_found |= checks.get(name, set()) & OURS
            for helper in source.private.get(name, []):
                errors_found |= {_last(helper.returns)} & OURS
                if id(helper) not in seen:
                    waiting.append(helper)
    return errors_found


def caught(node: ast.AST) -> set[str]:
    """Names in the `except` clauses of a function."""
    handlers = (inner for inner in ast.walk(node) if isinstance(inner, ast.ExceptHandler))
    return {
        _last(kind)
        for handler in handlers
        for kind in (handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type])
    }


def messages(tree: ast.AST) -> Iterator[Message]:
    """Every construction of one of our errors, raised on the spot or returned to be raised."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _last(node.func) in OURS:
            yield Message(_last(node.func), node.lineno, node.args[0] if node.args else None)


def fault(text: ast.expr | None) -> str:
    """What a message lacks, "" where it is complete."""
    if text is None:
        return "has no message"
    pieces = list(_pieces(text))
    words = " ".join(str(n.value) for n in pieces if isinstance(n, ast.Constant))
    valued = any(not isinstance(n, ast.Constant) for n in pieces)
    if not words and valued:
        return ""  # put together elsewhere, by a name or a call: its words stand there
    parts = len([part for part in re.split(r"[.;:](?:\s+|$)", words) if part.strip()])
    least = 2 if valued else 3
    return "" if parts >= least else f"has {parts} part(s), of {least} needed: {words!r}"


def _pieces(text: ast.expr) -> Iterator[ast.expr]:
    """Parts of a message: the values of an f-string, both sides of a sum, or the expression."""
    if isinstance(text, ast.JoinedStr):
        yield from text.values
    elif isinstance(text, ast.BinOp):
        yield from _pieces(text.left)
        yield from _pieces(text.right)
    elif isinstance(text, ast.Call) and _last(text) in ("format", "join", "rstrip", "strip"):
        yield from _pieces(text.func.value)
        yield from text.args
    else:
        yield text


def name_of(path: Path) -> str:
    """Dotted name of a module below tokensense."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


PARSED = [Source(name_of(path), path.read_text()) for path in SOURCES]
CHECKS = checks_raise()
# A module may have an error of its own that a neighbor catches, such as one for a single row.
LOCAL = {n.name for s in PARSED for n in ast.walk(s.tree) if isinstance(n, ast.ClassDef)}


def makers(node: ast.AST) -> list[ast.AST]:
    """What runs at a call: the function itself, or what makes an object of the class."""
    if isinstance(node, ast.ClassDef):
        return [n for n in node.body if getattr(n, "name", "") in ("__init__", "__post_init__")]
    return [node]


def said(node: ast.AST) -> set[str]:
    """Errors in the `Raises` of a public thing, or of what makes it."""
    return set().union(*(documented(part) or set() for part in (node, *makers(node))))


def says_of_all() -> dict[str, set[str]]:
    """What public callables raise, said or read, by their last name."""
    found: dict[str, set[str]] = {}
    for source in PARSED:
        for _, node in source.public():
            read = (needed(source, maker, CHECKS) for maker in makers(node))
            found.setdefault(node.name, set()).update(said(node), *read)
    return found


SAYS = says_of_all()
each_module = pytest.mark.parametrize("source", PARSED, ids=lambda source: source.name)


def undescribed(source: Source) -> list[str]:
    """Public things without a docstring."""
    module = [] if ast.get_docstring(source.tree) else [f"{source.name}: the module itself"]
    return module + [
        f"{source.name}.{name}" for name, node in source.public() if not ast.get_docstring(node)
    ]


def unsaid(source: Source) -> list[str]:
    """Public functions whose `Raises` is not what they raise."""
    wrong = []
    for name, node in source.public():
        needs = set().union(*(needed(source, maker, CHECKS) for maker in makers(node)))
        inner = set().union(*(names(maker) for maker in makers(node)))
        says, reach = said(node), needs | reachable(source, inner)
        if missing := sorted(needs - says - caught(node)):
            wrong.append(f"{source.name}.{name}: raises {missing}, not in `Raises`")
        if stale := sorted((says & OURS) - reach):
            wrong.append(f"{source.name}.{name}: `Raises` names {stale}, which nothing here raises")
        if unknown := sorted(says - OURS - OTHERS - LOCAL - set(dir(builtins))):
            wrong.append(f"{source.name}.{name}: `Raises` names {unknown}, no known errors")
    return wrong


def reachable(source: Source, used: set[str]) -> set[str]:
    """Errors that the functions used say they raise.

    Private helpers and tables of the module are read on: `FORMATS[format](path)` may call every
    reader in `FORMATS`.
    """
    found, seen, waiting = set(), set(), list(used)
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            found |= SAYS.get(name, set())
            for part in [*source.private.get(name, []), *source.tables.get(name, [])]:
                waiting += names(part)
    return found


def foreign(source: Source) -> set[str]:
    """Errors raised by name that are neither ours, nor caught again, nor part of the language."""
    units = [
        part
        for node in source.tree.body
        for part in (node.body if isinstance(node, ast.ClassDef) else [node])
    ]
    leaving = set().union(*(raised(unit) - caught(unit) for unit in units))
    returned = set(source.private)  # `raise _refusal(...)`
    return leaving - OURS - OTHERS - LOCAL - returned


@each_module
def test_everything_public_has_a_docstring(source: Source):
    assert undescribed(source) == []


@each_module
def test_raises_sections_name_what_is_raised(source: Source):
    assert unsaid(source) == []


@each_module
def test_messages_say_what_was_needed_what_came_and_what_to_do(source: Source):
    found = [(f"{source.name}:{m.line} {m.error}", fault(m.text)) for m in messages(source.tree)]
    assert [f"{where} {lacks}" for where, lacks in found if lacks] == []


@each_module
def test_users_mistakes_raise_our_errors(source: Source):
    assert foreign(source) == set()


# --- the readers themselves ----------------------------------------------------------------------

HEADER = '"""Header."""\n'


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("raise SchemaError(x)", "raises ['SchemaError'], not in"),
        ("_inner()", "raises ['InputError'], not in"),
        ("raise _made()", "raises ['StoreError'], not in"),
        ("require_range('x', 1, 0, 2)", "raises ['SchemaError'], not in"),
        ('"""Do.\n\n    Raises:\n        InputError: never.\n    """', "which nothing here raises"),
        ('"""Do.\n\n    Raises:\n        NoSuchError: never.\n    """', "no known errors"),
    ],
)
def test_a_wrong_raises_section_is_found(body: str, found: str):
    helpers = "def _inner():\n    raise InputError(x)\ndef _made() -> StoreError:\n    return y\n"
    (fault_found,) = unsaid(Source("made", f"{HEADER}{helpers}def run():\n    {body}\n"))
    assert found in fault_found


@pytest.mark.parametrize(
    "body",
    [
        '"""Do.\n\n    Raises:\n        SchemaError: as\n            said.\n    """\n    _refuse()',
        "try:\n        raise SchemaError(x)\n    except SchemaError:\n        pass",
        '"""Do.\n\n    Raises:\n        SchemaError: as that.\n    """\n    require_range(x)',
        "return 1",
    ],
)
def test_a_right_raises_section_passes(body: str):
    helper = "def _refuse():\n    raise SchemaError(x)\n"
    assert unsaid(Source("made", f"{HEADER}{helper}def run():\n    {body}\n")) == []


def test_a_bare_standard_error_is_found():
    text = "class A:\n    def f(self):\n        raise ValueError('x')\n"
    text += "def g():\n    raise InputError(x) from None\n"
    text += "def h():\n    try:\n        raise TypeError\n    except TypeError:\n        pass\n"
    assert foreign(Source("made", text)) == {"ValueError"}


def test_the_maker_of_an_object_speaks_for_its_class():
    text = "class Box:\n    def __init__(self):\n        raise SchemaError(x)\n"
    assert "made.Box: raises ['SchemaError']" in unsaid(Source("made", HEADER + text))[0]


def test_public_things_without_docstring_are_found():
    text = "class A:\n    def f(self): ...\n    def _g(self): ...\ndef h():\n    def i(): ...\n"
    assert undescribed(Source("made", text)) == [
        "made: the module itself",
        "made.A",
        "made.A.f",
        "made.h",
    ]


@pytest.mark.parametrize(
    ("message", "complete"),
    [
        ("f'`x` needs 1; it is {x}.'", True),
        ("f'`x` needs 1; ' f'it is {x}. Give 1.'", True),
        ("'`x` is {}. Give 1.'.format(x)", True),
        ("'an open store is needed; this one is closed. Open it again.'", True),
        ("built(x)", True),
        ("message", True),
        ("f'bad value {x}'", False),
        ("'`x` is wrong; give 1'", False),
        ("''", False),
        ("", False),
    ],
)
def test_messages_are_judged_by_their_parts(message: str, complete: bool):
    (found,) = messages(ast.parse(f"raise SchemaError({message})"))
    assert (fault(found.text) == "") is complete
