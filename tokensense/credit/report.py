"""What a rule does to a batch, in a few numbers; which rules do the same; which rules there are.

Reads  weights, credit, advantage, surprisal, ||onehot - p||, learning value of the same tokens.
Gives  WEIGHT_NUMBERS and CREDIT_NUMBERS, what is said of every rule, with their values;
       mass_by_kind, rank_correlations, twins, learning_value_score, overhead; listing.
Sign   a positive correlation with surprisal: unlikely tokens get more credit.

Update directions are compared without a model: gradients of different tokens count as orthogonal
(score vectors are martingale differences), each as long as ||onehot - p||.

Source: what methods/cscr.md section 5.8 asks to log; Gini: ARCA, arXiv:2606.00257.
"""

import math
import time
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float64, Int64, Shaped
from scipy.stats import rankdata

from tokensense.credit.base import DAGGER, Credit
from tokensense.credit.evidence import SUPPLIERS, Evidence
from tokensense.segments import broadcast, segment_mean, segment_ranks

Tokens = Float64[np.ndarray, " token"]

WEIGHT_NUMBERS: dict[str, str] = {
    "tokens": "tokens that were weighed",
    "mean": "mean weight",
    "least": "smallest weight",
    "largest": "largest weight",
    "effective": "effective tokens, (sum w)^2 / sum w^2, as a share of the tokens; uniform: 1",
    "gini": "Gini coefficient of the weights; uniform: 0, all weight on one token: near 1",
    "below_uniform": "share of tokens with less credit than under uniform (weight below 1)",
    "moved": "share of the credit that lies on other tokens than under uniform, mean |w - 1| / 2",
    "with_surprisal": "correlation of the ranks within rollouts of weight and surprisal, as shares "
    "of the rollout's length; NaN where the weights do not vary",
}
CREDIT_NUMBERS: dict[str, str] = {
    "rotation": "degrees between the update's direction and that of uniform credit, gradients of "
    "tokens taken as orthogonal",
    "with_length": "correlation over rollouts of the ranks of length and of mean credit a token, "
    "as a share of the advantage's size; NaN where either does not vary",
}
TWINS = 0.95  # of rank correlations: rules above it choose the same tokens
# Rounding of a weight that is 1 by its formula.
ROUNDING = 1e-12


def weight_numbers(
    weights: Float64[np.ndarray, " token"] | None,
    surprisal: Float64[np.ndarray, " token"],
    length: Int64[np.ndarray, " rollout"],
) -> dict[str, int | float]:
    """Values of `WEIGHT_NUMBERS`, all but the count without unit.

    Args:
        weights: of the tokens that were weighed; None for a rule that has none.
        surprisal: of the same tokens, nats.
        length: tokens per rollout.

    Returns:
        Name -> value; NaN where there are no weights.

    Example:
        >>> numbers = weight_numbers(np.array([0.5, 1.5]), np.array([2.0, 1.0]), np.array([2]))
        >>> numbers["effective"], numbers["moved"], round(numbers["with_surprisal"], 6)
        (0.8, 0.25, -1.0)
    """
    if weights is None or not weights.size:
        return {name: 0 if name == "tokens" else math.nan for name in WEIGHT_NUMBERS}
    squares = float(np.sum(weights**2))
    effective = float(np.sum(weights)) ** 2 / (weights.size * squares) if squares else math.nan
    return {
        "tokens": int(weights.size),
        "mean": float(weights.mean()),
        "least": float(weights.min()),
        "largest": float(weights.max()),
        "effective": effective,
        "gini": _gini(weights),
        "below_uniform": float(np.mean(weights < 1 - ROUNDING)),
        "moved": float(np.mean(np.abs(weights - 1)) / 2),
        "with_surprisal": _rank_correlation(weights, surprisal, length),
    }


def credit_numbers(
    credit: Tokens, advantage: Tokens, distance: Tokens, *, length: Int64[np.ndarray, " rollout"]
) -> dict[str, float]:
    """Values of `CREDIT_NUMBERS`; NaN where no token has any credit.

    Args:
        credit: of every token, in units of the advantage.
        advantage: of its rollout.
        distance: ||onehot - p||.
        length: tokens per rollout.

    Example:
        >>> ones = np.ones(2)
        >>> credit_numbers(np.array([2.0, 0.0]), ones, ones, length=np.array([2]))["rotation"]
        45.0
    """
    one, other = credit * distance, advantage * distance
    sizes = math.sqrt(float(one @ one) * float(other @ other))
    cosine = float(one @ other) / sizes if sizes else math.nan
    degrees = math.degrees(math.acos(min(max(cosine, -1.0), 1.0))) if sizes else math.nan
    size = np.abs(advantage)
    share = np.where(size > 0, np.abs(credit) / np.where(size > 0, size, 1.0), 1.0)
    mean = segment_mean(share, length)[length > 0]
    return {
        "rotation": round(degrees, 9),
        "with_length": _correlation(np.round(mean, 12), length[length > 0].astype(np.float64)),
    }


def mass_by_kind(credit: Tokens, kind: Shaped[np.ndarray, " token"]) -> dict[str, dict[str, float]]:
    """Share of the credit's size, and of the tokens, that lies on each kind.

    Args:
        credit: of every token.
        kind: name of its kind.

    Returns:
        Kind -> `credit` and `tokens`, shares; `credit` is NaN where there is none at all.
    """
    total = float(np.abs(credit).sum())
    return {
        str(name): {
            "credit": float(np.abs(credit[kind == name]).sum()) / total if total else math.nan,
            "tokens": float(np.mean(kind == name)),
        }
        for name in np.unique(kind)
    }


def rank_correlations(
    scores: Mapping[str, Tokens], length: Int64[np.ndarray, " rollout"]
) -> Float64[np.ndarray, "score score"]:
    """Correlations of ranks within rollouts, so that differences between rollouts play no part.

    Args:
        scores: name -> one number a token, any unit.
        length: tokens per rollout.

    Returns:
        In the order of the names; NaN where one of the two does not vary within any rollout.
    """
    # Without the shift by 1/2, a single token of a rollout would rank at the top.
    shares = [
        (segment_ranks(_settled(score), length) - 0.5) / broadcast(length, length)
        for score in scores.values()
    ]
    return np.array([[_linear(one, other) for other in shares] for one in shares])


def twins(
    names: Sequence[str], correlations: Float64[np.ndarray, "score score"], *, above: float = TWINS
) -> list[tuple[str, str, float]]:
    """All pairs that correlate above a bound, largest first.

    Args:
        names: of rows and columns.
        correlations: of `rank_correlations`.
        above: the bound.
    """
    found = [
        (names[i], names[j], float(correlations[i, j]))
        for i in range(len(names))
        for j in range(i + 1, len(names))
        if correlations[i, j] > above
    ]
    return sorted(found, key=lambda pair: -pair[2])


def learning_value_score(
    credit: Tokens, advantage: Tokens, distance: Tokens, *, value: Tokens
) -> float:
    """Learning value that an update of a given size gains, in units of what uniform credit gains.

    Args:
        credit: of every token.
        advantage: of its rollout.
        distance: ||onehot - p||.
        value: <grad log p(token), G>, G the held-out gradient of expected reward.

    Returns:
        1 for uniform; negative where the rule learns the wrong way; NaN where uniform gains
        nothing.
    """

    def gain(given: Tokens) -> float:
        size = float(np.linalg.norm(given * distance))
        return float(given @ value) / size if size else math.nan

    base = gain(advantage)
    return gain(credit) / base if base else math.nan


def overhead(rule: Credit, evidence: Evidence, *, repeats: int = 3) -> float:
    """Seconds that a rule takes once its evidence is there, the least of some runs.

    Args:
        rule: any.
        evidence: what it needs.
        repeats: runs.
    """
    spans = []
    for _ in range(repeats):
        start = time.perf_counter()
        rule.assign(evidence)
        spans.append(time.perf_counter() - start)
    return min(spans)


def extra_passes(rule: Credit) -> int | None:
    """Forward passes beside base that its evidence takes, one wording each; None: many.

    Args:
        rule: any.
    """
    passes = [SUPPLIERS[name].passes for name in rule.needs]
    known = [count for count in passes if count is not None]
    return sum(known) if len(known) == len(passes) else None


def shown_name(name: str, rule: Credit) -> str:
    """Its name, with a dagger where the rule is a reconstruction.

    Args:
        name: in the catalogue.
        rule: of that name.
    """
    return name + DAGGER * (rule.grade == "inferred")


def listing(rules: Mapping[str, Credit]) -> list[dict[str, str]]:
    """One row a rule, for people: name, grade, form, budget, extra passes, needs, source.

    Args:
        rules: `credit.CATALOGUE`, or others.
    """
    rows = []
    for name, rule in rules.items():
        passes = extra_passes(rule)
        rows.append(
            {
                "rule": shown_name(name, rule),
                "grade": rule.grade,
                "form": rule.form,
                "budget": rule.budget,
                "passes": "many" if passes is None else str(passes),
                "needs": ", ".join(sorted(rule.needs)),
                "source": rule.source,
            }
        )
    return rows


def _gini(weights: Tokens) -> float:
    """Half the mean difference of two weights over their mean."""
    total = float(weights.sum())
    if not total:
        return math.nan
    rank = np.arange(1, weights.size + 1)
    return float((2 * rank - weights.size - 1) @ np.sort(weights)) / (weights.size * total)


def _settled(values: Tokens) -> Tokens:
    """Without the last digits, in which equal values differ by rounding."""
    size = float(np.abs(values).max(initial=0.0))
    return np.round(values / size, 12) if size else values


def _rank_correlation(x: Tokens, y: Tokens, length: Int64[np.ndarray, " rollout"]) -> float:
    return float(rank_correlations({"x": x, "y": y}, length)[0, 1])


def _correlation(x: Float64[np.ndarray, " n"], y: Float64[np.ndarray, " n"]) -> float:
    """Rank correlation of two plain columns."""
    return _linear(rankdata(x), rankdata(y))


def _linear(x: Float64[np.ndarray, " n"], y: Float64[np.ndarray, " n"]) -> float:
    if not x.size or np.ptp(x) == 0 or np.ptp(y) == 0:
        return math.nan
    return float(np.corrcoef(x, y)[0, 1])
