"""The decision table: what the primary endpoints of one store say together, in one word.

Reads  results of the endpoints, or the reason why there is none.
Gives  decide: estimate, p, Holm's p, smallest reachable p and n of each endpoint; word and flag.
Sign   that of each endpoint.

Words, with thresholds fixed before any run (`statistics.md` 3.13):
placebo_like          E1: the verdict does not rank first among the placebo families.
read_not_informative  E1 first, E2 equivalent to .5 (90 % interval within +-.06).
read_and_informative  E1 first, E2's 90 % interval above .56.
inconclusive          E1 first and E2 anything else, or not estimable.
not_estimable         E1 is not estimable, or its problem texts are too few for any interval.
Flag `redundant`: E3's 90 % interval lies within +-.02. No word says that a picture is supported:
its parts can disagree.

Nulls     read: the verdict's word is one more irrelevant word (rank p). informative: AUROC is .5,
          two-sided, Student's t on the bootstrap's standard error. beyond: the increase is 0 or
          less. drives: comes with the gradient of a policy; without it that is said.
Holm      over the estimable ones, step down, within the one (model, data, frames) of this store,
          which is named. The words go by thresholds and intervals, not by p: with m placebo
          families E1 cannot reach less than 1 / (m + 1), 19 families for .05.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Float
from scipy.stats import t as student

from tokensense.stats.resampling import T_FROM
from tokensense.stats.results import plain

ENDPOINTS: dict[str, str] = {
    "read": "E1: lambda of the verdict minus mean of the placebo families",
    "informative": "E2: within-problem AUROC of the summed contrast, balanced over generators",
    "beyond": "E3: increase in AUROC of the wrong step when shifts are added",
    "drives": "E4: share of the update under the rule minus uniform's",
}
# Statistic of each endpoint's triple that is the primary one, and the term of it.
PRIMARY = {
    "read": ("lambda", "difference"),
    "informative": ("auroc_sum_balanced", "verdict"),
    "beyond": ("increase", "verdict"),
    "drives": ("share", "difference"),
}
NOTES: dict[str, dict[str, str]] = {
    "p": {"description": "of the endpoint's null; NaN where it is not estimable"},
    "p_holm": {"description": "Holm's over the estimable endpoints"},
    "smallest_p": {"description": "that the rank test can reach; NaN where p has no steps"},
}
COUNTS = ("n_clusters", "n_rollouts", "n_tokens")
NO_GRADIENT = "needs the gradient of the policy, which a store of log-probabilities has not"
MEANINGS = {
    "placebo_like": "the verdict's word does not stand out from irrelevant words",
    "read_not_informative": "the verdict is read, and what is read does not tell right from wrong",
    "read_and_informative": "the verdict is read, and what is read tells right from wrong",
    "inconclusive": "the verdict is read; whether that tells right from wrong is not settled",
    "not_estimable": "whether the verdict is read cannot be told",
}


def holm(p: Sequence[float] | Float[np.ndarray, " test"]) -> Float[np.ndarray, " test"]:
    """Holm's adjusted p.

    Args:
        p: of each test; NaN for one that was not made, which does not count.

    Returns:
        At most 1; NaN where p is.
    """
    given = np.asarray(p, dtype=np.float64)
    found = np.full(given.shape, np.nan)
    made = np.flatnonzero(~np.isnan(given))
    order = made[np.argsort(given[made], kind="stable")]
    steps = given[order] * (order.size - np.arange(order.size))
    found[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return found


def decide(
    results: Mapping[str, xr.Dataset],
    *,
    reasons: Mapping[str, str],
    attrs: Mapping[str, object],
) -> xr.Dataset:
    """Put the endpoints side by side.

    Args:
        results: endpoint -> its triple; those that are missing need a reason.
        reasons: endpoint -> why there is no result.
        attrs: of the Dataset; who scored and who sampled name the family of tests.

    Returns:
        Dims (endpoint, bound): `estimate`, `interval`, `p`, `p_holm`, `smallest_p` (NaN where p has
        no steps), `n_clusters`, `n_rollouts`, `n_tokens`; coordinates `statement`, `meaning`.
        Attributes `word`, `statement`, `redundant` (1, 0, or "not_estimable"), `family`.
    """
    lines = [_line(name, results.get(name), reasons.get(name, "")) for name in ENDPOINTS]
    word = _word(results)
    tests = sum(not math.isnan(line.p) for line in lines)
    redundant = results["beyond"].attrs.get("redundant") if "beyond" in results else None
    every = {
        **attrs,
        "word": word,
        "statement": f"{MEANINGS[word]}{_few(results)}; {_redundancy(redundant)}",
        "redundant": "not_estimable" if redundant is None else int(redundant),
        "family": _named(results, attrs),
        "tests": tests,
        "smallest_p_holm": min(1.0, lines[0].smallest_p * tests),
    }
    columns: dict[str, list[float]] = {
        name: [getattr(line, name) for line in lines]
        for name in ("estimate", "p", "smallest_p", *COUNTS)
    }
    columns["p_holm"] = holm(columns["p"]).tolist()
    return xr.Dataset(
        {
            "interval": (("endpoint", "bound"), [line.interval for line in lines]),
            **{name: ("endpoint", values, NOTES.get(name, {})) for name, values in columns.items()},
        },
        coords={
            "endpoint": list(ENDPOINTS),
            "bound": ["low", "high"],
            "statement": ("endpoint", [line.statement for line in lines]),
            "meaning": ("endpoint", list(ENDPOINTS.values())),
        },
        attrs=plain(every),
    )


class _Line(NamedTuple):
    """What is shown of one endpoint; NaN for what is not known, -1 for counts."""

    statement: str
    estimate: float = math.nan
    interval: tuple[float, float] = (math.nan, math.nan)
    p: float = math.nan
    smallest_p: float = math.nan
    n_clusters: int = -1
    n_rollouts: int = -1
    n_tokens: int = -1


def _line(name: str, result: xr.Dataset | None, reason: str) -> _Line:
    """Take from an endpoint's result what is shown."""
    if result is None:
        return _Line(f"not estimable: {reason}")
    statistic, term = PRIMARY[name]
    one = result.sel(statistic=statistic, term=term)
    facts = one.attrs
    said = str(facts["statement"])
    if name == "informative" and facts["word"] != "not_estimable":
        said = f"{facts['word']}, {said}"
    low, high = one["interval"].values.tolist()
    return _Line(
        said,
        estimate=float(one["estimate"]),
        interval=(low, high),
        p=_p(name, one),
        smallest_p=float(facts.get("smallest_p", math.nan)) if "p" in facts else math.nan,
        n_clusters=int(one["n_clusters"]),
        **{count: int(facts[count]) for count in COUNTS[1:] if count in facts},
    )


def _p(name: str, one: xr.Dataset) -> float:
    """P of one endpoint; NaN where it is not estimable."""
    if name != "informative":
        return float(one.attrs.get("p", np.nan))
    error = float(one["error"])
    if one.attrs["word"] == "not_estimable" or not error > 0:
        return float("nan")
    distance = abs(float(one["estimate"]) - 0.5) / error
    return float(2 * student.sf(distance, int(one["n_clusters"]) - 1))


def _word(results: Mapping[str, xr.Dataset]) -> str:
    """The word of the table."""
    rank = results["read"].attrs.get("rank") if "read" in results else None
    if rank is None or _texts(results["read"]) < T_FROM:
        return "not_estimable"
    if rank != 1:
        return "placebo_like"
    told = results["informative"].attrs["word"] if "informative" in results else "not_estimable"
    words = {"equivalent": "read_not_informative", "informative": "read_and_informative"}
    return words.get(str(told), "inconclusive")


def _texts(read: xr.Dataset) -> int:
    """Problem texts behind E1."""
    statistic, term = PRIMARY["read"]
    return int(read["n_clusters"].sel(statistic=statistic, term=term))


def _few(results: Mapping[str, xr.Dataset]) -> str:
    """That a rank of a few problems speaks for no others."""
    few = "read" in results and 0 < _texts(results["read"]) < T_FROM
    return f" from fewer than {T_FROM} problem texts" if few else ""


def _redundancy(redundant: object) -> str:
    """What the flag says."""
    if redundant is None:
        return "whether shifts add to uncertainty is not estimable"
    return "shifts add nothing to uncertainty (redundant)" if redundant else "not shown redundant"


def _named(results: Mapping[str, xr.Dataset], attrs: Mapping[str, object]) -> str:
    """Model, data and frames of the family of tests."""
    frames = results["read"].attrs.get("frames", "[]") if "read" in results else "[]"
    sampled = attrs.get("sampled_by")
    return (
        f"scored by {attrs.get('scored_by', 'unknown')}, sampled by "
        f"{sampled if sampled not in (None, [], '[]') else 'unknown'}, frames {frames}"
    )
