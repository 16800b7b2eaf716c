"""Settings of a study: from its code, a YAML file and the command line, refused where unknown.

Reads  the folder `studies` of the checkout that the package lies in; a YAML file; `a.b=c` texts.
Gives  found, planned, Plan; `claim` keeps the settings beside the results.

A study is a module with a dataclass `Config` (what was fixed before the first run) and a function
`main(config, *, ...)`. Its settings are the fields of the one and the keywords of the other, by
their own names and types: nothing is declared twice. `CONFIGS`, where there is one, names its
variants; `TINY` is a small Config, or the changes that make one. Studies of another form, such as
benchmarks that start processes, have a command line of their own (`python -m studies.NAME --help`).

Source: own work.
"""

import ast
import dataclasses
import difflib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, get_type_hints

import pydantic
import yaml

from tokensense.errors import InputError

ROOT = Path(__file__).parents[1]


class Plan(NamedTuple):
    """A study with all its settings.

    Attributes:
        name: of the study.
        settings: every one of them, as plain values that YAML can hold.
        start: runs it.
        out: folder of the results, None for a study that only prints.
    """

    name: str
    settings: dict[str, Any]
    start: Callable[[], object]
    out: Path | None


def found() -> dict[str, str]:
    """Names of the studies, and the first line of what each says.

    Raises:
        InputError: there is no folder of studies.
    """
    folder = ROOT / "studies"
    if not (folder / "__init__.py").is_file():
        raise InputError(
            f"studies are a folder of the checkout, not of the package; {folder} is not there. "
            "Clone the repository, install it with `pip install -e .`, and run the command again."
        )
    trees = {path.stem: ast.parse(path.read_text("utf-8")) for path in folder.glob("*.py")}
    return {
        name: (ast.get_docstring(tree) or "").partition("\n")[0]
        for name, tree in sorted(trees.items())
        if {"Config", "main"} <= {getattr(part, "name", "") for part in tree.body}
    }


def planned(
    name: str,
    *,
    variant: str | None = None,
    tiny: bool = False,
    given: Sequence[Mapping[str, Any]] = (),
) -> Plan:
    """A study under settings.

    Args:
        name: of the study.
        variant: one of its `CONFIGS`, where it has them.
        tiny: take its small form.
        given: settings as trees, such as a file's and those of `assigned`; a later one wins.

    Raises:
        InputError: study, variant or setting are not known, or a value is of the wrong kind.
    """
    _known("study", name, found())
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    study = import_module(f"studies.{name}")
    base = _base(study, name, variant=variant, tiny=tiny)
    keywords = list(inspect.signature(study.main).parameters.values())[1:]
    kinds = get_type_hints(study.Config) | get_type_hints(study.main)
    defaults = base | {k.name: k.default for k in keywords if k.default is not k.empty}
    names = [*base, *(k.name for k in keywords)]
    if "out" in names:
        parts = [name, *([variant] if variant else []), *(["tiny"] if tiny else [])]
        defaults["out"] = Path("runs") / "_".join(parts)
    values = {n: defaults[n] for n in names if n in defaults and defaults[n] is not _MISSING}
    tree: dict[str, Any] = {}
    for later in given:
        tree = _joined(tree, later)
    values = _changed(values, tree, names=names, study=name)
    checked = _checked(name, {n: kinds[n] for n in names}, values)
    config = study.Config(**{n: getattr(checked, n) for n in base})
    others = {k.name: getattr(checked, k.name) for k in keywords}
    settings = checked.model_dump(mode="json")
    return Plan(name, settings, lambda: study.main(config, **others), others.get("out"))


def assigned(text: str) -> dict[str, Any]:
    """The tree of a text `a.b=c`; the value is read as YAML.

    >>> assigned("scoring.frames=3")
    {'scoring': {'frames': 3}}

    Raises:
        InputError: it is no such text.
    """
    path, sign, value = text.partition("=")
    if not sign or not all(path.split(".")):
        raise InputError(f"a setting needs the form a.b=c; it is {text!r}. Say: problems=10.")
    *outer, last = path.split(".")
    tree = {last: read_yaml(value, name=text)}
    for key in reversed(outer):
        tree = {key: tree}
    return tree


def read_yaml(text: str, *, name: str) -> object:
    """What a YAML text holds.

    Raises:
        InputError: it is no YAML.
    """
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as cause:
        raise InputError(f"{name} needs YAML; it cannot be read: {cause}. Mend it.") from cause


def read_settings(path: Path) -> dict[str, Any]:
    """The settings in a YAML file.

    Raises:
        InputError: there is no such file, or it holds no settings.
    """
    if not path.is_file():
        raise InputError(f"a file of settings is needed; {path} is not there. Check the path.")
    tree = read_yaml(path.read_text("utf-8"), name=str(path))
    if not isinstance(tree, dict):
        raise InputError(f"{path} needs lines `setting: value`; it holds {tree!r}. Write them.")
    return tree


def written(settings: Mapping[str, Any]) -> str:
    """Settings as YAML, in their order."""
    return str(yaml.safe_dump(dict(settings), sort_keys=False))


def claim(plan: Plan) -> Path | None:
    """Write the settings beside the results, or see that a run begun there had the same ones.

    Returns:
        The file, which `read_settings` takes; None for a study without a folder.

    Raises:
        InputError: the folder holds a run under other settings.
    """
    if plan.out is None:
        return None
    path = plan.out / f"{plan.name}.yaml"
    if path.exists():
        before, now = read_settings(path), plan.settings
        other = [key for key in now if before.get(key, _MISSING) != now[key] and key != "out"]
        if other:
            raise InputError(
                f"{plan.out} holds a run under other settings of {', '.join(other)} "
                f"({path}). Take another folder with --set out=FOLDER, or remove that file to "
                "go on all the same."
            )
        return path
    plan.out.mkdir(parents=True, exist_ok=True)
    path.write_text(written(plan.settings), "utf-8")
    return path


_MISSING = dataclasses.MISSING


def _base(study: ModuleType, name: str, *, variant: str | None, tiny: bool) -> dict[str, Any]:
    """Fields of the study's Config and their values; `_MISSING` where there is none."""
    variants = getattr(study, "CONFIGS", {})
    if variant is not None or variants:
        _known(f"--variant of {name}", variant, variants)
    small = getattr(study, "TINY", None)
    if tiny and small is None:
        raise InputError(f"--tiny needs a study with a small form; {name} has none. Leave it out.")
    chosen = variants[variant] if variant is not None else None
    if tiny and not isinstance(small, Mapping):
        chosen = small
    base = {field.name: _default(field, chosen) for field in dataclasses.fields(study.Config)}
    return base | (dict(small) if tiny and isinstance(small, Mapping) else {})


def _default(field: "dataclasses.Field[object]", chosen: object) -> object:
    if chosen is not None:
        return getattr(chosen, field.name)
    made = field.default_factory
    return field.default if made is _MISSING else made()


def _joined(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Both trees, leaves of the second before those of the first."""
    both = dict(first)
    for key, value in second.items():
        old = both.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            both[key] = _joined(old, value)
        else:
            both[key] = value
    return both


def _changed(
    values: Mapping[str, Any], tree: Mapping[str, Any], *, names: Sequence[str], study: str
) -> dict[str, Any]:
    """The values, those of the tree in their place; dataclasses are gone into."""
    changed = dict(values)
    for key, value in tree.items():
        _known(f"setting of {study}", key, names)
        old = changed.get(key)
        changed[key] = value
        if isinstance(value, Mapping) and dataclasses.is_dataclass(old):
            fields = {field.name: getattr(old, field.name) for field in dataclasses.fields(old)}
            changed[key] = _changed(fields, value, names=list(fields), study=f"{study}, {key}")
    return changed


def _known(what: str, name: object, names: Mapping[str, Any] | Sequence[str]) -> None:
    """Refuse a name that is not among others, with the nearest that is."""
    if name in names:
        return
    near = difflib.get_close_matches(str(name), list(names), n=1)
    advice = f"Did you mean {near[0]!r}? " if near else ""
    raise InputError(
        f"{what}: {', '.join(sorted(names))} are known; {name!r} came. {advice}"
        "`tokensense study run NAME --dry-run` prints all settings."
    )


def _checked(study: str, kinds: Mapping[str, Any], values: Mapping[str, Any]) -> pydantic.BaseModel:
    """The values as a pydantic model, each of its kind."""
    fields: dict[str, Any] = {name: (kind, ...) for name, kind in kinds.items()}
    model: type[pydantic.BaseModel] = pydantic.create_model("Settings", **fields)
    try:
        return model.model_validate(dict(values))
    except pydantic.ValidationError as cause:
        raise InputError(
            f"settings of {study} need their own kinds: {'; '.join(_faults(cause))}. Give them "
            "with --set or in the file."
        ) from cause


def _faults(error: pydantic.ValidationError) -> Iterator[str]:
    """What is wrong with each setting."""
    for fault in error.errors():
        place = ".".join(map(str, fault["loc"]))
        came = "nothing" if fault["type"] == "missing" else repr(fault["input"])
        yield f"`{place}` is needed ({fault['msg']}); {came} came"
