"""Plain JSON lines (or Parquet) of rollouts, any field names: the format `jsonl`.

Reads  one rollout a row. A field map says which field of a row holds what:

    question  needed. The question as asked, without template
    text      needed unless `ids` is mapped. The response
    ids       the sampler's own token ids, 0 to 2^31 - 1
    logp      the engine's log-probabilities, nats, one a token of `ids`; without ids they cannot
              belong to any token and are not read
    reward    1 right, 0 wrong, null undecided; true and false, and numbers as text, are read as
              numbers; other finite numbers stay as they are
    answer    the reference answer, text or number; null if not known
    solution  a reference solution, text; null if not known
    group     id of the problem, text or number; rows of equal question are one group even so
    name      id of the rollout, text or number
    generator name of the model that wrote the response
    finish    stop, length, abort or unknown, and what servers call these

Dots reach into objects and lists: `{"question": "prompt.-1.content", "reward": "scores.exact"}`.
What is not mapped is looked up under its own name and may be missing; what is mapped must be in
every row.

Gives  `Imported`; broken rows are named by file and line, the good ones come in. Rows that repeat
       another in every field are one rollout written twice: give samples a `name` if two may be
       equal.
Sign   rewards as given, larger is better.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tokensense.errors import InputError
from tokensense.importing.collecting import Entry, collect
from tokensense.importing.fields import finish_of, ids_of, logps_of, reward_of
from tokensense.rollouts.trajectory import Imported, Trace
from tokensense.tasks.problem import Problem
from tokensense.tasks.records import MISSING, Row, RowError, found, printed_number, shown, text

FIELDS = (
    "question",
    "text",
    "ids",
    "logp",
    "reward",
    "answer",
    "solution",
    "group",
    "name",
    "generator",
    "finish",
)


def read_jsonl(
    path: str | Path, *, fields: Mapping[str, str] | None = None, limit: int | None = None
) -> Imported:
    """Read rollouts, one a row; see the module's header for the fields.

    Args:
        path: JSON lines, or Parquet by its suffix.
        fields: our name -> the row's field; None looks for our own names.
        limit: see `collecting.collect`.

    Returns:
        Problems, traces, and what was left out. Without a mapped `group` or `name`, problems and
        rollouts are named by file and line.

    Raises:
        InputError: `fields` has a name that is none of ours, or leaves out `text` though `ids` is
            not mapped either; or see `collecting.collect`.
    """
    mapped = dict(fields or {})
    unknown = sorted(set(mapped) - set(FIELDS))
    if unknown:
        raise InputError(f"a field map with names of {list(FIELDS)} is needed; it has {unknown}.")
    return collect(path, partial(_entry, mapped), format="jsonl", limit=limit)


def _entry(mapped: Mapping[str, str], row: Row) -> Entry:
    record = row.record
    here = f"{Path(row.place.rpartition(':')[0]).stem}:{row.line}"
    ids = ids_of(_value(record, mapped, "ids"), mapped.get("ids", "ids"))
    has_text = "text" in mapped or found(record, "text") is not MISSING
    response = (
        text(record, mapped.get("text", "text"), empty=True) if has_text or ids is None else ""
    )
    problem = Problem(
        name=_label(record, mapped, "group") or here,
        question=text(record, mapped.get("question", "question")),
        answer=_label(record, mapped, "answer"),
        source=Path(row.place.rpartition(":")[0]).name,
        solution=_label(record, mapped, "solution"),
    )
    trace = Trace(
        problem=problem.name,
        name=_label(record, mapped, "name") or here,
        text=response,
        ids=ids,
        reward=reward_of(_value(record, mapped, "reward"), mapped.get("reward", "reward")),
        generator=_label(record, mapped, "generator") or "",
        finish=finish_of(_value(record, mapped, "finish"), mapped.get("finish", "finish")),
        logps=logps_of(_value(record, mapped, "logp"), ids, mapped.get("logp", "logp")),
    )
    return Entry(problem, [trace])


def _value(record: Mapping[str, Any], mapped: Mapping[str, str], name: str) -> object:
    """The value of one of our fields; None if it is null, or missing and not mapped."""
    value = found(record, mapped.get(name, name))
    if value is not MISSING:
        return value
    if name in mapped:
        raise RowError(
            f"the field `{mapped[name]}` ({name}) is needed; the row has {shown(sorted(record))}"
        )
    return None


def _label(record: Mapping[str, Any], mapped: Mapping[str, str], name: str) -> str | None:
    """A field that is text or a number, as text; None for null and blank."""
    value = _value(record, mapped, name)
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    label = printed_number(value)
    if label is None:
        field = mapped.get(name, name)
        raise RowError(f"`{field}` must be text or a number; {shown(value)} came")
    return label
