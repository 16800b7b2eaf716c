"""Completions of a TRL run (`log_completions=True`): the format `trl`.

Reads  `{output_dir}/completions/completions_{step:05d}.parquet`: step, prompt, completion, one
       column a reward function (named as the function is), columns of `log_extra`, advantage.
Gives  `Imported`. A group is one prompt at one step. The reward is the one column that can be it;
       where there are several (no file says which are rewards, nor their weights) the field map
       chooses: {"reward": "accuracy_reward"}. `answer` may be a column of `log_extra`.
Sign   rewards as logged, larger is better; null and NaN are not known.

What the file does not have: ids (text comes without special tokens, so the end token is gone), the
group, log-probabilities, the finish reason, training or evaluation. TRL logs its last generation
batch at every logging step: with several optimizer steps a batch the same rows come again under a
later step. Such a file is set aside whole; equal rows within a file are samples that came out equal
and stay.

Prompts and completions are text, or messages where the data set is conversational. Of messages one
by the user is the question, which the scoring policy's template puts into its place as TRL's did;
conversations of other messages, and completions with more than the assistant's one, are set aside.

Source: huggingface/trl#4818 (commit 51e20987e8470a4670c74c437d32de045f56ca63), `GRPOTrainer.log`.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tokensense.errors import InputError
from tokensense.importing.collecting import Entry, SetAsideError, collect
from tokensense.importing.fields import reward_of
from tokensense.importing.places import chosen, file_of, name_of, numbered
from tokensense.rollouts.trajectory import Imported, Trace
from tokensense.tasks.problem import Problem
from tokensense.tasks.records import Row, RowError, needed, printed_number, rows, text

FIXED = frozenset({"step", "prompt", "completion", "advantage", "images", "image"})
LOGGED_AGAIN = "generation batch that was logged before"
OTHER_MESSAGES = "conversation of more than one message of the user and one of the assistant"


class _Plan(NamedTuple):
    """What the files as a whole say: the reward's column, the answer's, the files to leave out."""

    reward: str | None
    answer: str | None
    again: frozenset[Path]


def read_trl(
    path: str | Path, *, fields: Mapping[str, str] | None = None, limit: int | None = None
) -> Imported:
    """Read TRL's completions; see the module's header.

    Args:
        path: the run's output folder, its `completions`, or one file.
        fields: `reward` and `answer` -> the column.
        limit: see `collecting.collect`.

    Returns:
        Problems with their prompts as text, one trace a row, named by file and row.

    Raises:
        InputError: several columns may be the reward and `fields` does not choose; or see
            `collecting.collect`.
        MissingExtraError: pyarrow is not installed.
    """
    mapped = chosen(fields, ("reward", "answer"), "trl")
    files = numbered(path, "completions_*.parquet", below="completions")
    plan = _plan(files, mapped)
    return collect(files, partial(_entry, plan), format="trl", limit=limit, distinct=None)


def _plan(files: Sequence[Path], mapped: Mapping[str, str]) -> _Plan:
    seen: set[bytes] = set()
    again = set()
    numeric: dict[str, bool] = {}
    for file in files:
        digest = hashlib.sha256()
        try:
            for row in rows(file, []):
                digest.update(_content(row.record))
                for name, value in row.record.items():
                    numeric[name] = numeric.get(name, True) and _may_be_reward(value)
        except InputError:
            continue  # unreadable as a whole: `collect` says so
        if digest.digest() in seen:
            again.add(file)
        seen.add(digest.digest())
    return _Plan(_reward_column(numeric, mapped), mapped.get("answer"), frozenset(again))


def _content(record: Mapping[str, Any]) -> bytes:
    """A row without its step."""
    kept = {name: value for name, value in record.items() if name != "step"}
    return json.dumps(kept, sort_keys=True, default=repr).encode("utf-8", "surrogatepass")


def _may_be_reward(value: object) -> bool:
    return value is None or isinstance(value, int | float)


def _reward_column(numeric: Mapping[str, bool], mapped: Mapping[str, str]) -> str | None:
    if "reward" in mapped:
        return mapped["reward"]
    taken = FIXED | set(mapped.values())
    columns = sorted(name for name, fits in numeric.items() if fits and name not in taken)
    if "reward" in columns:
        return "reward"
    if len(columns) > 1:
        raise InputError(
            f"one reward column is needed; the files have {columns}, and do not say which are "
            f"rewards and with what weights. Choose one: --field reward={columns[0]}."
        )
    return columns[0] if columns else None


def _entry(plan: _Plan, row: Row) -> Entry:
    if file_of(row) in plan.again:
        raise SetAsideError(LOGGED_AGAIN)
    record = row.record
    step = printed_number(needed(record, "step"))
    if step is None:
        raise RowError("`step` must be text or a number; another thing came")
    name, question = name_of(row), _words(record, "prompt", role="user")
    answer = printed_number(needed(record, plan.answer)) if plan.answer else None
    reward = (
        reward_of(needed(record, plan.reward), plan.reward)
        if plan.reward
        else reward_of(None, "reward")
    )
    response = _words(record, "completion", role="assistant")
    trace = Trace(name, name, response, reward=reward)
    problem = Problem(name, question, answer, file_of(row).parent.name)
    # Messages have no template around them yet: nothing to look for the question in.
    whole = question if isinstance(record["prompt"], str) else None
    return Entry(problem, [trace], group=step, prompt=whole)


def _words(record: Mapping[str, Any], field: str, *, role: str) -> str:
    """Text of a field, or of the one message that it holds."""
    found = needed(record, field)
    empty = role == "assistant"
    if not isinstance(found, list):
        return text(record, field, empty=empty)
    if [message.get("role") for message in found if isinstance(message, dict)] != [role]:
        raise SetAsideError(OTHER_MESSAGES)
    return text({field: found[0].get("content")}, field, empty=empty)
