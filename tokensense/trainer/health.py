"""Is a run still learning? Warnings before it collapses, and what they most likely come from.

Reads  the records of a run, in their order.
Gives  Finding, `findings` of the newest record, `has_collapsed`, `repeated_share`.
Sign   none: nothing here is signed.

A run has collapsed when the held-out accuracy stays below 25 % of its start for five evaluations in
a row, when the entropy falls below 10 % of its start, or when at least 90 % of the responses reach
the limit on tokens. All else is a warning. Start is the first record that has the number.

A cause is a guess by what else moved, and says so: gradient first, since it comes before the rest.

Source: own rules; thresholds of collapse as in the project's plan.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

REWARD_SHARE, EVALUATIONS = 0.25, 5
ENTROPY_SHARE = 0.10
CAPPED = 0.90
# Of warnings.
LOW_ENTROPY_SHARE = 0.30
OFTEN_CAPPED = 0.50
FEW_TOKENS = 0.05
MUCH_CLIPPED = 0.20
STEEP = 10.0  # times the median gradient norm of earlier steps
REPEATED = 0.50
IDLE_STEPS = 5
NGRAM = 4

Record = dict[str, Any]


class Finding(NamedTuple):
    """One thing that is wrong.

    Attributes:
        step: when.
        sign: reward, entropy, length, tokens, clipping, gradient, repetition or idle.
        message: numbers, likely cause, and what to try.
        collapse: whether it counts as the end of learning.
    """

    step: int
    sign: str
    message: str
    collapse: bool = False

    def as_record(self) -> Record:
        """As sinks take it."""
        return {"kind": "finding", **self._asdict()}


def findings(records: Sequence[Record]) -> list[Finding]:
    """What is wrong by the newest record, collapse first.

    Args:
        records: of a run, the newest last; its `kind` is `step` or `evaluation`.
    """
    steps = [record for record in records if record["kind"] == "step"]
    judged = [record for record in records if record["kind"] == "evaluation"]
    newest = records[-1]
    if newest["kind"] == "evaluation":
        found = list(_reward(judged, steps))
    elif newest["kind"] == "step":
        found = [*_entropy(steps), *_length(steps), *_update(steps), *_idle(steps)]
    else:
        found = []
    return sorted(found, key=lambda finding: not finding.collapse)


def has_collapsed(records: Sequence[Record]) -> int | None:
    """The step at which a run collapsed, None for one that did not.

    Args:
        records: of a whole run.
    """
    lost = (r["step"] for r in records if r["kind"] == "finding" and r["collapse"])
    return next(lost, None)


def repeated_share(ids: Sequence[int]) -> float:
    """Share of the runs of four tokens that the response had before; 0 for a short one.

    Args:
        ids: of one response.

    Example:
        >>> repeated_share([1, 2, 3, 4, 1, 2, 3, 4])
        0.2
    """
    runs = Counter(zip(*(ids[start:] for start in range(NGRAM)), strict=False))
    total = sum(runs.values())
    return (total - len(runs)) / total if total else 0.0


def _reward(judged: Sequence[Record], steps: Sequence[Record]) -> Iterator[Finding]:
    start, last = judged[0]["accuracy"], judged[-EVALUATIONS:]
    low = [record["accuracy"] < REWARD_SHARE * start for record in last]
    if all(low):  # never the start itself, so there are five more
        yield Finding(
            judged[-1]["step"],
            "reward",
            f"Held-out accuracy was below {REWARD_SHARE:.0%} of its start ({start:.3f}) in the "
            f"last {EVALUATIONS} evaluations; it is {last[-1]['accuracy']:.3f}. Likely cause: "
            f"{_cause(steps)}.",
            collapse=True,
        )


def _entropy(steps: Sequence[Record]) -> Iterator[Finding]:
    start, now = steps[0]["entropy"], steps[-1]["entropy"]
    if not now < LOW_ENTROPY_SHARE * start:
        return
    collapse = now < ENTROPY_SHARE * start
    yield Finding(
        steps[-1]["step"],
        "entropy",
        f"Entropy is {now:.4f} nats, {now / start:.0%} of its start. Likely cause: "
        f"{_cause(steps)}; groups of equal responses teach nothing.",
        collapse=collapse,
    )


def _length(steps: Sequence[Record]) -> Iterator[Finding]:
    capped, repeated = steps[-1]["capped"], steps[-1]["repetition"]
    if capped >= OFTEN_CAPPED:
        yield Finding(
            steps[-1]["step"],
            "length",
            f"{capped:.0%} of the responses reach the limit on tokens. Likely cause: "
            f"{_cause(steps)}; tokens that end a response may get no credit. Try `overlong`, or a "
            "higher `max_new_tokens`.",
            collapse=capped >= CAPPED,
        )
    if repeated >= REPEATED:
        yield Finding(
            steps[-1]["step"],
            "repetition",
            f"{repeated:.0%} of the runs of {NGRAM} tokens were there before in their response. "
            f"Likely cause: {_cause(steps)}.",
        )


def _update(steps: Sequence[Record]) -> Iterator[Finding]:
    now = steps[-1]
    earlier = sorted(s["gradient_norm"] for s in steps[:-1] if _finite(s["gradient_norm"]))
    clipped = now["clip_low"] + now["clip_high"]
    if clipped > MUCH_CLIPPED:
        yield Finding(
            now["step"],
            "clipping",
            f"{clipped:.0%} of the tokens are clipped. Likely cause: too many updates on the same "
            "samples, or too high a learning rate. Lower `epochs`, `updates` or `learning_rate`.",
        )
    if _finite(now["gradient_norm"]) and len(earlier) >= IDLE_STEPS:
        usual = earlier[len(earlier) // 2]
        if now["gradient_norm"] > STEEP * usual:
            yield Finding(
                now["step"],
                "gradient",
                f"The gradient is {now['gradient_norm'] / usual:.0f} times as long as usual. "
                "Likely cause: much credit on unlikely tokens. Lower `learning_rate`, set "
                "`max_norm`, or cap the weights.",
            )
    if now["effective_tokens"] < FEW_TOKENS:
        yield Finding(
            now["step"],
            "tokens",
            f"The update rests on {now['effective_tokens']:.1%} of its tokens. Likely cause: the "
            "rule puts nearly all weight on few. Soften or cap it.",
        )


def _idle(steps: Sequence[Record]) -> Iterator[Finding]:
    last = steps[-IDLE_STEPS:]
    if len(last) == IDLE_STEPS and all(record["updates"] == 0 for record in last):
        reward = last[-1]["reward"]
        yield Finding(
            last[-1]["step"],
            "idle",
            f"No update in {IDLE_STEPS} steps: all groups have equal rewards (mean {reward:.2f}). "
            "Likely cause: the problems are too easy or too hard. Draw others, a larger `group`, "
            "or `extra_rounds`.",
        )


def _cause(steps: Sequence[Record]) -> str:
    """The first of the usual causes that the records show."""
    norms = [step["gradient_norm"] for step in steps if _finite(step["gradient_norm"])]
    if any(b > STEEP * a > 0 for a, b in pairwise(norms)):
        return "an update far larger than the others (lower `learning_rate` or set `max_norm`)"
    if steps and steps[-1]["entropy"] < ENTROPY_SHARE * steps[0]["entropy"]:
        return "the policy has become deterministic (raise `clip_high`, or add a KL)"
    if steps and steps[-1]["capped"] >= CAPPED:
        return "responses no longer end (credit their ends, or use `overlong`)"
    if steps and steps[-1]["entropy"] > 2 * steps[0]["entropy"]:
        return "negative credit spreads probability over all tokens (lower `learning_rate`)"
    return "not shown by entropy, length or gradient (lower `learning_rate`)"


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
