"""Token exports of a prime-rl run (`enable_token_export`): the format `prime_rl`.

Reads  `token_exports/step_{n}/rank_{r}.jsonl` of schema version 1, one packed sequence a line:
       token_ids, loss_mask, inference_logprobs, rewards (not in older ones), export_step, ...; only
       folders with the `STABLE` marker, which the trainer writes once a step is complete.
Gives  `Imported` with exact ids: the prompt is what stands before the first token of the loss mask,
       the response what the mask holds. A group is one prompt (its ids) at one step. `rewards` is
       the rollout's, once a token.
Sign   rewards as exported; `inference_logprobs` in nats, each at its own token's place (the
       trainer puts zeros before them, one a prompt token); null is not known.

What the file does not have: the question and reference answer, the finish reason, sequences that
were filtered out or train no token (all-masked ones are not written), and temperature and top-p,
without which nobody knows of what distribution the log-probabilities are. Sequences with tokens
that were not sampled among those that were (several turns, tools) are set aside: they are no one
response.

Source: PrimeIntellect-ai/prime-rl, `src/prime_rl/trainer/rl/token_export.py` (commit
004274ec964f016ec9b17b5ae990a4b535314ff1), `prepare_sample` of `src/prime_rl/trainer/batch.py`.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokensense.errors import InputError
from tokensense.importing.collecting import Entry, SetAsideError, collect
from tokensense.importing.fields import ids_of, logps_of, reward_of
from tokensense.importing.places import chosen, file_of, name_of, numbered
from tokensense.rollouts.trajectory import Imported, Trace
from tokensense.tasks.problem import Problem
from tokensense.tasks.records import Row, RowError, needed, shown, whole_number

MARKER = "STABLE"
SCHEMA_VERSION = 1
SEVERAL_TURNS = "tokens that were not sampled stand after the first that was"


def read_prime_rl(
    path: str | Path, *, fields: Mapping[str, str] | None = None, limit: int | None = None
) -> Imported:
    """Read prime-rl's token exports; see the module's header.

    Args:
        path: the run's output folder, its `token_exports`, one step, or one file.
        fields: must be None.
        limit: see `collecting.collect`.

    Returns:
        Problems with their prompts as ids and no text, one trace a line with exact ids; `refused`
        names the steps without the marker too.

    Raises:
        InputError: no step has the marker; or see `collecting.collect`.
    """
    chosen(fields, (), "prime_rl")
    folders = _folders(Path(path))
    stable = [folder for folder in folders if (folder / MARKER).is_file()]
    unstable = [
        f"{folder}: the marker `{MARKER}` is needed; it is not there, so that the step may be half "
        "written"
        for folder in folders
        if folder not in stable
    ]
    if not stable:
        raise InputError(
            f"a step with the marker `{MARKER}` is needed; {unstable[0]}. Wait until the trainer "
            "has finished it."
        )
    files = (
        [Path(path)]
        if Path(path).is_file()
        else [file for folder in stable for file in numbered(folder, "rank_*.jsonl")]
    )
    imported = collect(files, _entry, format="prime_rl", limit=limit)
    imported.refused.extend(unstable)
    return imported


def _folders(path: Path) -> list[Path]:
    """Steps, in order."""
    if path.is_file():
        return [path.parent]
    inner = path / "token_exports" if (path / "token_exports").is_dir() else path
    if any(inner.glob("rank_*.jsonl")):
        return [inner]
    steps = [folder for folder in inner.glob("step_*") if folder.name[5:].isdecimal()]
    if not steps:
        raise InputError(
            f"folders `step_*` with `rank_*.jsonl` are needed; {inner} has none. Give the run's "
            "output folder or its `token_exports`."
        )
    return sorted(steps, key=lambda folder: int(folder.name[5:]))


def _entry(row: Row) -> Entry:
    record = row.record
    whole_number(record, "schema_version", low=SCHEMA_VERSION, high=SCHEMA_VERSION)
    ids = ids_of(needed(record, "token_ids"), "token_ids")
    if ids is None:
        raise RowError("`token_ids` must be a list of token ids; null came")
    mask = _column(record, "loss_mask", len(ids))
    if not all(isinstance(value, bool) for value in mask) or True not in mask:
        raise RowError(f"`loss_mask` must hold true and false, one true; {shown(mask)} came")
    start = mask.index(True)
    if start == 0:
        raise RowError("a prompt is needed; the loss mask begins at the first token")
    if not all(mask[start:]):
        raise SetAsideError(SEVERAL_TURNS)
    logps = logps_of(record.get("inference_logprobs"), ids, "inference_logprobs")
    step = whole_number(record, "export_step", low=0, high=2**53)
    name = name_of(row, folder=True)
    trace = Trace(
        name,
        name,
        "",
        ids=ids[start:],
        reward=_reward(record, start, len(ids)),
        logps=None if logps is None else logps[start:],
    )
    source = file_of(row).parent.parent.name
    return Entry(Problem(name, "", None, source), [trace], group=str(step), prompt=ids[:start])


def _column(record: Mapping[str, Any], field: str, count: int) -> list[Any]:
    value = needed(record, field)
    if not isinstance(value, list) or len(value) != count:
        came = f"{len(value)} values" if isinstance(value, list) else shown(value)
        raise RowError(f"`{field}` must hold one value a token, {count}; {came} came")
    return value


def _reward(record: Mapping[str, Any], start: int, count: int) -> float:
    """The one value over the response's tokens; NaN where the export has none."""
    if record.get("rewards") is None:
        return math.nan
    values = set(_column(record, "rewards", count)[start:])
    if len(values) > 1:
        raise RowError(f"`rewards` must be one value, the rollout's; {shown(values)} came")
    return reward_of(values.pop(), "rewards")
