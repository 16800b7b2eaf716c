"""Score the frozen responses of a store again under the conditions of probes.

Reads  `/rollouts`, a Policy, conditions.
Gives  `/probes/<name>` (`schema.PROBE`) for each probe and for the base; `estimate`, the same
       without a model.
Sign   logp in nats; shift = logp[condition] - logp[base], positive: the token became likelier.

Probes are scored one after the other, each in blocks of whole rollouts (of whole problems where
they fit). A probe's bytes depend on its own conditions, the policy and the settings, never on what
else was asked for at the same time or on interruptions. What prompts would save by being shared
between probes is small: a prompt is fed once more for each probe, a response once for each
condition.

Source: design section 4 (blocks) and 6. The shift by one is `models.plan`'s alone.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from tqdm.auto import tqdm

from tokensense.checks import require_range
from tokensense.errors import LockError, StoreError
from tokensense.models.plan import Branch
from tokensense.models.policy import Policy
from tokensense.models.scorer import TOKENS_PER_ROW, score, scoring_settings
from tokensense.probes.blocks import block_table
from tokensense.probes.comparability import UNSCORED, limits
from tokensense.probes.conditions import (
    BASE_CONDITION,
    Condition,
    require_conditions,
    shown_text,
)
from tokensense.probes.contexts import (
    Problems,
    Survey,
    prompts,
    read_problems,
    survey,
    unique_tokens,
)
from tokensense.probes.resuming import as_started
from tokensense.schema import BASE, PROBE, STATISTICS, Comparability
from tokensense.segments import offsets
from tokensense.store.archive import Archive
from tokensense.store.layout import flag_coordinate

# Scored tokens a block: about a minute, which is what a kill can cost.
TOKENS_PER_BLOCK = {"cpu": 2**14}
LARGEST_BLOCK = 2**16
COORDINATES = {
    "condition_name": "name of the condition",
    "family": "what the edited word is about",
    "level": "the edited word's side: pos, neg or none",
    "frame": "the sentence around the edited word",
    "wording": "the word pair",
    "tone": "praise, blame or none",
    "placement": "where the text stands in the prompt",
}


class Work(NamedTuple):
    """One probe, ready to be scored.

    Attributes:
        name: of the probe.
        conditions: in the order of dim `condition`.
        survey: verdicts and sizes.
        blocks: rollouts [start, end) of each block.
        header: all that decides the bytes of the node.
    """

    name: str
    conditions: tuple[Condition, ...]
    survey: Survey
    blocks: list[tuple[int, int]]
    header: dict[str, Any]


def run_probes(
    archive: Archive,
    policy: Policy,
    conditions_by_probe: Mapping[str, Sequence[Condition]],
    *,
    tokens_per_block: int | None = None,
    tokens_per_row: int = TOKENS_PER_ROW,
    temperature: float = 1.0,
    path: str = "auto",
    progress: bool = True,
) -> dict[str, Any]:
    """Score probes, and the base if the store has none, and write their nodes.

    Finished probes and blocks are not scored again. An interrupt (Ctrl-C, a kill) costs the block
    under way; the same call goes on from there and ends in the same bytes.

    Args:
        archive: with rollouts, open for writing.
        policy: scores. A base scored by another policy, or in another way, is refused.
        conditions_by_probe: probe name -> conditions; may be empty, for the base alone.
        tokens_per_block: scored tokens (tokens x conditions) a block; None for 16,384 on CPU and
            65,536 elsewhere. A rollout is never cut, whatever its size.
        tokens_per_row: see `models.scorer.score`.
        temperature: see `models.scorer.score`.
        path: see `models.scorer.score`.
        progress: show a bar with tokens a second and time left.

    Returns:
        `scored_tokens` and `seconds` of this call, and for each probe how many (condition, rollout)
        have which comparability verdict, OK left out.

    Raises:
        ConditionError: a probe has no conditions, or impossible ones.
        StoreError: rollouts, base or an unfinished probe of the store were made with another policy
            or other settings; the difference is named.
        LockError: another process writes to the store.
        PolicyError: the policy cannot take the path asked for.
        SchemaError: `tokens_per_block`, `tokens_per_row`, `temperature` or `path` is outside what
            is allowed.
    """
    settings = scoring_settings(
        policy, tokens_per_row=tokens_per_row, temperature=temperature, path=path
    )
    rollouts = archive.rollouts()
    problems = read_problems(rollouts, policy)
    asked = _as_started(archive, conditions_by_probe)
    todo = _works(archive, problems, policy, asked, tokens=tokens_per_block, settings=settings)
    began, scored = time.monotonic(), 0
    total = sum(int(work.survey.scored.sum()) for work in todo)
    done = sum(_done_tokens(archive, work) for work in todo)
    with tqdm(total=total, initial=done, unit="tok", unit_scale=True, disable=not progress) as bar:
        try:
            for work in todo:
                scored += _score_probe(archive, policy, work, problems=problems, bar=bar)
                if not archive.is_finished(work.name):
                    archive.assemble_probe(
                        work.name,
                        coords=coordinates(work.conditions),
                        attrs=_attributes(work, rollouts, policy),
                    )
        except BaseException:
            archive.close()
            raise
    return {
        "scored_tokens": scored,
        "seconds": time.monotonic() - began,
        "comparability": {work.name: verdict_counts(work.survey.comparability) for work in todo},
    }


def estimate(
    archive: Archive,
    policy: Policy,
    conditions_by_probe: Mapping[str, Sequence[Condition]],
    *,
    tokens_per_block: int | None = None,
) -> dict[str, Any]:
    """What `run_probes` would cost; prompts are rendered, the model is not run, nothing is written.

    Args:
        archive: with rollouts.
        policy: whose tokenizer and device.
        conditions_by_probe: as for `run_probes`.
        tokens_per_block: as for `run_probes`.

    Returns:
        `rollouts`, `response_tokens`; `scored_tokens` (response tokens x conditions), `fed_tokens`
        (prompts too, each once a condition and rollout: the padded path), `unique_prompt_tokens`
        (prompts of each probe and problem with common beginnings once: the trie), `blocks`,
        `remaining_tokens` (of blocks not done); `probes`: the same by probe, with its number of
        conditions and counts of comparability verdicts other than OK.

    Raises:
        ConditionError: see `run_probes`.
        StoreError: the store has no rollouts, or not this policy's, or a probe of that name with
            other conditions.
        SchemaError: `tokens_per_block` is not positive.
    """
    problems = read_problems(archive.rollouts(), policy)
    asked = _as_started(archive, conditions_by_probe)
    todo = _works(archive, problems, policy, asked, tokens=tokens_per_block, settings={})
    probes: dict[str, dict[str, Any]] = {}
    for work in todo:
        fed, unique = _prompt_tokens(work, problems, policy)
        scored = int(work.survey.scored.sum())
        probes[work.name] = {
            "conditions": len(work.conditions),
            "scored_tokens": scored,
            "fed_tokens": fed + scored,
            "unique_prompt_tokens": unique,
            "blocks": len(work.blocks),
            "remaining_tokens": scored - _done_tokens(archive, work),
            "comparability": verdict_counts(work.survey.comparability),
        }
    sizes = ("scored_tokens", "fed_tokens", "unique_prompt_tokens", "blocks", "remaining_tokens")
    return {
        "rollouts": len(problems.responses),
        "response_tokens": sum(map(len, problems.responses)),
        **{size: sum(probe[size] for probe in probes.values()) for size in sizes},
        "probes": probes,
    }


def coordinates(conditions: Sequence[Condition]) -> dict[str, xr.Variable]:
    """Coordinates over `condition`: its number, and what it is as CF flags."""
    index = xr.Variable(
        ("condition",),
        np.arange(len(conditions), dtype=np.int32),
        {"units": "1", "description": "number of the condition; see `condition_name`"},
    )
    names = {
        key: [getattr(condition, key.removeprefix("condition_")) for condition in conditions]
        for key in COORDINATES
    }
    return {"condition": index} | {
        key: flag_coordinate(names[key], description=about) for key, about in COORDINATES.items()
    }


def verdict_counts(comparability: np.ndarray) -> dict[str, int]:
    """How many (condition, rollout) have which verdict, OK left out."""
    found = Counter(comparability.ravel().tolist())
    return {v.name.lower(): found[v] for v in Comparability if v and found[v]}


def _works(
    archive: Archive,
    problems: Problems,
    policy: Policy,
    conditions_by_probe: Mapping[str, Sequence[Condition]],
    *,
    tokens: int | None,
    settings: Mapping[str, Any],
) -> list[Work]:
    """The base and the probes, checked and cut into blocks."""
    if not problems.responses:
        raise StoreError("a probe needs rollouts; the store has none. Import or generate some.")
    if BASE in conditions_by_probe:
        raise StoreError(f"a probe needs a name other than `{BASE}`; rename it.")
    most = TOKENS_PER_BLOCK.get(policy.device.type, LARGEST_BLOCK) if tokens is None else tokens
    require_range("tokens_per_block", float(most), 1.0, 2.0**40)
    for name, conditions in conditions_by_probe.items():
        require_conditions(name, conditions)
    bound = limits(policy, bos_id=policy.bos_id)
    found = []
    for name, conditions in {BASE: (BASE_CONDITION,), **conditions_by_probe}.items():
        seen = survey(problems, conditions, encoder=policy, limits=bound)
        header = {
            "conditions": [asdict(condition) for condition in conditions],
            "policy_digest": policy.digest,
            "tokenizer_digest": policy.tokenizer_digest,
            "template_digest": policy.template_digest,
            **settings,
        }
        blocks = archive.assembled_blocks(name)
        left = [group for group in problems.groups if group[0] >= (blocks or [(0, 0)])[-1][1]]
        blocks += block_table(left, seen.scored.tolist(), tokens=most)
        found.append(Work(name, tuple(conditions), seen, blocks, header))
    return found


def _as_started(
    archive: Archive, conditions_by_probe: Mapping[str, Sequence[Condition]]
) -> dict[str, Sequence[Condition]]:
    """Conditions as the probes were started with; others are refused, before any is scored."""
    return {
        name: conditions
        if (header := archive.header(name)) is None
        else as_started(name, header["conditions"], conditions)
        for name, conditions in conditions_by_probe.items()
    }


def _missing(archive: Archive, work: Work) -> list[int]:
    """Start or resume a probe; a base that cannot be used again says so in its own words."""
    try:
        return archive.start_probe(work.name, work.header, work.blocks)
    except LockError:
        raise
    except StoreError as cause:
        if work.name != BASE:
            raise
        raise StoreError(
            "probes of one store share its base, so they need the policy and the settings that the "
            f"base was scored with: {cause} Use the same settings, or another store."
        ) from cause


def _score_probe(
    archive: Archive, policy: Policy, work: Work, *, problems: Problems, bar: "tqdm[Any]"
) -> int:
    """Score and write the blocks of a probe that are not done; gives their scored tokens."""

    def advance(tokens: int) -> None:
        bar.update(tokens)

    scored = 0
    for index in _missing(archive, work):
        bar.set_description(f"{work.name} {index + 1}/{len(work.blocks)}")
        arrays = _block(work, index, problems, policy, progress=advance)
        archive.write_block(work.name, index, arrays)
        scored += _scored(work, index)
    return scored


def _block(
    work: Work,
    index: int,
    problems: Problems,
    policy: Policy,
    *,
    progress: Callable[[int], None],
) -> dict[str, np.ndarray]:
    """Arrays of one block, as `Archive.write_block` takes them."""
    start, end = work.blocks[index]
    first = offsets(np.array([len(ids) for ids in problems.responses[start:end]], np.int64))
    places = list(_branches(work, problems, policy, start=start, end=end))
    scores = score(
        policy,
        [branch for _, _, branch in places],
        tokens_per_row=work.header["tokens_per_row"],
        temperature=work.header["temperature"],
        path=work.header["path"],
        progress=progress,
    )
    shape = (len(work.conditions), int(first[-1]))
    arrays = {name: np.full(shape, np.nan, PROBE[name].dtype) for name in STATISTICS}
    for (condition, rollout, _), found in zip(places, scores, strict=True):
        span = slice(first[rollout - start], first[rollout - start + 1])
        for name in STATISTICS:
            arrays[name][condition, span] = getattr(found, name)
    arrays["comparability"] = work.survey.comparability[:, start:end]
    arrays["inserted_tokens"] = work.survey.inserted[:, start:end]
    return arrays


def _branches(
    work: Work, problems: Problems, policy: Policy, *, start: int, end: int
) -> Iterator[tuple[int, int, Branch]]:
    """(condition, rollout, branch) of all that can be scored among the rollouts [start, end)."""
    for index, (first, last) in enumerate(problems.groups):
        if last <= start or first >= end:
            continue
        asked = prompts(problems, index, work.conditions, encoder=policy)
        for rollout in range(max(first, start), min(last, end)):
            for condition, prompt in enumerate(asked):
                if work.survey.comparability[condition, rollout] not in UNSCORED:
                    yield condition, rollout, Branch(prompt.ids, problems.responses[rollout])


def _prompt_tokens(work: Work, problems: Problems, policy: Policy) -> tuple[int, int]:
    """Prompt tokens fed, and those left when common beginnings are computed once a problem."""
    fed = unique = 0
    for index, (start, end) in enumerate(problems.groups):
        asked = prompts(problems, index, work.conditions, encoder=policy)
        scorable = ~np.isin(work.survey.comparability[:, start:end], UNSCORED)
        fed += sum(
            len(prompt.ids) * int(n) for prompt, n in zip(asked, scorable.sum(axis=1), strict=True)
        )
        unique += unique_tokens(prompt.ids for prompt in asked)
    return fed, unique


def _done_tokens(archive: Archive, work: Work) -> int:
    """Scored tokens that are in the store; blocks of another plan count for nothing."""
    if archive.is_finished(work.name):
        return int(work.survey.scored.sum())
    return sum(_scored(work, i) for i in archive.done_blocks(work.name) if i < len(work.blocks))


def _scored(work: Work, index: int) -> int:
    """Scored tokens of one block."""
    start, end = work.blocks[index]
    return int(work.survey.scored[start:end].sum())


def _attributes(work: Work, rollouts: xr.Dataset, policy: Policy) -> dict[str, Any]:
    """Attributes of the node: texts of the conditions, who sampled and who scored."""
    return {
        "condition_texts": json.dumps([shown_text(c) for c in work.conditions]),
        "sampled_by": rollouts.attrs.get("sampled_by", []),
        "scored_by": policy.name,
        "description": f"response tokens scored under the conditions of `{work.name}`",
        "sign": "shift = logp[condition] - logp[base], nats; positive: the token became likelier",
    }
