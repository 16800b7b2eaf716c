"""Rollouts of a verl run (`trainer.rollout_data_dir`, `validation_data_dir`): the format `verl`.

Reads  `{dir}/{step}.jsonl`: input, output, gts, score, step, and what the reward function adds
       (`acc`, ...); `request_id`, or, from the v1 trainer, `uid` = "{group}_{session}_{output}".
Gives  `Imported`. A group is one prompt at one step, and one `uid` group where there is one. The
       field map may choose another `reward` (say `acc`) and another `answer`.
Sign   scores as written, larger is better; null and the literal `NaN` are not known.

What the file does not have: ids (text comes without special tokens, so the end token is gone),
log-probabilities, the finish reason. Rows without an id of their own are one sample each, equal or
not; rows that repeat another with its id are one rollout written twice. Outputs of a session that
has several share one score, which is no verdict on any one of them: they are set aside.

Source: verl-project/verl, `_log_rollout_data` and `_write_generations` of
`verl/trainer/ppo/v1/trainer_base.py` (commit 39574b513d9b6be8ab4885326058d61f4432aeb6) and
`_dump_generations` of `verl/trainer/ppo/ray_trainer.py` (d163ff3aae888f5d7155d3286f96c052e76beaa2).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tokensense.importing.collecting import Entry, SetAsideError, collect
from tokensense.importing.fields import reward_of
from tokensense.importing.places import chosen, file_of, name_of, numbered
from tokensense.rollouts.trajectory import Imported, Trace
from tokensense.tasks.problem import Problem
from tokensense.tasks.records import Row, RowError, needed, printed_number, rows, shown, text

OUTPUTS = "one of several outputs of a session, which share one score"
NOT_KNOWN = frozenset({"", "nan", "none", "null"})


def read_verl(
    path: str | Path, *, fields: Mapping[str, str] | None = None, limit: int | None = None
) -> Imported:
    """Read verl's rollouts; see the module's header.

    Args:
        path: the folder, or one file.
        fields: `reward` and `answer` -> the field; else `score` and `gts`.
        limit: see `collecting.collect`.

    Returns:
        Problems with their prompts as text, one trace a row, named by `uid` or by file and line.

    Raises:
        InputError: see `places.numbered` and `collecting.collect`.
    """
    mapped = chosen(fields, ("reward", "answer"), "verl")
    files = numbered(path, "*.jsonl")
    outputs = _outputs(files)
    return collect(
        files,
        partial(_entry, mapped, outputs),
        format="verl",
        limit=limit,
        distinct=_has_id,
        nan_is_null=True,
    )


def _has_id(row: Row) -> bool:
    return any(isinstance(row.record.get(name), str) for name in ("uid", "request_id"))


def _outputs(files: Sequence[Path]) -> Counter[str]:
    """(File and session) -> its outputs."""
    found: set[tuple[str, str]] = set()
    for file in files:
        for row in rows(file, [], nan_is_null=True):
            if parts := _uid(row.record):
                found.add((f"{file}|{parts[0]}_{parts[1]}", parts[2]))
    return Counter(session for session, _ in found)


def _uid(record: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Group, session and output of a v1 uid."""
    uid = record.get("uid")
    parts = uid.rsplit("_", 2) if isinstance(uid, str) else []
    if len(parts) == 3 and parts[1].isdecimal() and parts[2].isdecimal():
        return parts[0], parts[1], parts[2]
    return None


def _entry(mapped: Mapping[str, str], outputs: Mapping[str, int], row: Row) -> Entry:
    record = row.record
    uid = _uid(record)
    if uid and outputs[f"{file_of(row)}|{uid[0]}_{uid[1]}"] > 1:
        raise SetAsideError(OUTPUTS)
    step = needed(record, "step")
    if printed_number(step) is None:
        raise RowError(f"`step` must be text or a number; {shown(step)} came")
    prompt, here = text(record, "input"), name_of(row)
    score = mapped.get("reward", "score")
    trace = Trace(
        here,
        str(record["uid"]) if uid else here,
        text(record, "output", empty=True),
        reward=reward_of(_known(needed(record, score)), score),
    )
    # Answers that are lists or objects are a reward function's own business.
    answer = printed_number(_known(needed(record, mapped.get("answer", "gts"))))
    problem = Problem(here, prompt, answer, f"{file_of(row).parent.name}")
    group = f"{printed_number(step)}|{uid[0] if uid else ''}"
    return Entry(problem, [trace], group=group, prompt=prompt)


def _known(value: object) -> object:
    """Writers with `default=str` print what is not known as text."""
    return None if isinstance(value, str) and value.strip().lower() in NOT_KNOWN else value
