"""Rollout shards of an open-instruct run (`save_traces`): the format `open_instruct`.

Reads  `{run}_rollouts_{shard:06d}.jsonl`: step, sample_idx, prompt_idx, prompt_tokens,
       response_tokens, reward, advantage, finish_reason, dataset, ground_truth, request_info,
       logprobs; and `{run}_metadata.jsonl` beside them (model_name).
Gives  `Imported` with exact ids. A group is one `prompt_idx` at one step of one run.
Sign   rewards as written, larger is better; logprobs in nats; null and the literal `NaN` (which
       Python prints) are not known.

What the file does not have: the question's text, which tokens a tool wrote (rollouts that called
one are set aside), a reference answer as text where it was tokenized, and the engine's settings:
open-instruct changed from raw to processed log-probabilities (#1678), and no shard says which.
Shards are appended to: a run that was started again repeats steps, and repeated rows that differ in
nothing are one rollout.

Source: allenai/open-instruct, `RolloutRecord` and `_save_rollouts` of `open_instruct/rl_utils.py`
(commit 00feb3a567315ffde00848c030c90613218f563f).
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tokensense.importing.collecting import Entry, SetAsideError, collect
from tokensense.importing.fields import finish_of, ids_of, logps_of, reward_of
from tokensense.importing.places import chosen, file_of, name_of, numbered
from tokensense.rollouts.trajectory import Imported, Trace
from tokensense.tasks.problem import Problem
from tokensense.tasks.records import (
    Row,
    RowError,
    needed,
    printed_number,
    rows,
    shown,
    whole_number,
)

TOOLS = "a tool wrote a part of the response"
SHARDS = "_rollouts_"


def read_open_instruct(
    path: str | Path, *, fields: Mapping[str, str] | None = None, limit: int | None = None
) -> Imported:
    """Read open-instruct's shards; see the module's header.

    Args:
        path: the folder, or one shard.
        fields: must be None.
        limit: see `collecting.collect`.

    Returns:
        Problems with their prompts as ids and no text, one trace a line with exact ids; the
        generator is the metadata's `model_name`.

    Raises:
        InputError: see `places.numbered` and `collecting.collect`.
    """
    chosen(fields, (), "open_instruct")
    files = numbered(path, f"*{SHARDS}*.jsonl")
    models = _models(files)
    return collect(
        files, partial(_entry, models), format="open_instruct", limit=limit, nan_is_null=True
    )


def _models(files: Sequence[Path]) -> dict[str, str]:
    """Run -> its model, where metadata lie beside the shards."""
    found = {}
    for file in files:
        run = _run(file)
        beside = file.with_name(f"{run}_metadata.jsonl")
        if run not in found and beside.is_file():
            named = [printed_number(row.record.get("model_name")) for row in rows(beside, [])]
            found[run] = (named or [None])[-1] or ""
    return found


def _run(file: Path) -> str:
    return file.stem.rpartition(SHARDS)[0]


def _tokens(record: Mapping[str, Any], field: str) -> tuple[int, ...]:
    ids = ids_of(needed(record, field), field)
    if ids is None:
        raise RowError(f"`{field}` must be a list of token ids; null came")
    return ids


def _entry(models: Mapping[str, str], row: Row) -> Entry:
    record, run, name = row.record, _run(file_of(row)), name_of(row)
    info = record.get("request_info")
    if isinstance(info, Mapping) and (info.get("tool_calleds") or info.get("tool_called")):
        raise SetAsideError(TOOLS)
    step, prompt_idx = (
        whole_number(record, field, low=0, high=2**53) for field in ("step", "prompt_idx")
    )
    prompt, ids = _tokens(record, "prompt_tokens"), _tokens(record, "response_tokens")
    if not prompt:
        raise RowError(f"`prompt_tokens` must hold a prompt; {shown(list(prompt))} came")
    trace = Trace(
        name,
        name,
        "",
        ids=ids,
        reward=reward_of(needed(record, "reward"), "reward"),
        generator=models.get(run, ""),
        finish=finish_of(record.get("finish_reason"), "finish_reason"),
        logps=logps_of(record.get("logprobs"), ids, "logprobs"),
    )
    problem = Problem(name, "", printed_number(record.get("ground_truth")), run)
    return Entry(problem, [trace], group=f"{run}|{step}|{prompt_idx}", prompt=prompt)
