"""The primary endpoints of one store, with what belongs to them, and the decision.

Reads  the Dataset of `Study.tokens()`, its sample, pairs and terms.
Gives  primaries: Datasets by name; estimate: those of the endpoints alone.
Sign   as in `reading`, `endpoints`, `beyond`, `choice`, `decision`.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Shaped

from tokensense.stats.beyond import beyond
from tokensense.stats.choice import step_choice
from tokensense.stats.decision import NO_GRADIENT, decide
from tokensense.stats.endpoints import informative
from tokensense.stats.pairs import Terms
from tokensense.stats.reading import read
from tokensense.stats.resampling import Resampling
from tokensense.stats.sample import Pair, Sample
from tokensense.stats.steps import Steps, knows_steps, steps_of

NO_MIXED = "no problem has a right and a wrong response"


class Estimated(NamedTuple):
    """What there is of the endpoints.

    Attributes:
        results: Datasets by name.
        reasons: endpoint -> why it is missing.
        steps: labelled steps, None where there are none.
    """

    results: dict[str, xr.Dataset]
    reasons: dict[str, str]
    steps: Steps | None


def estimate(
    tokens: xr.Dataset,
    sample: Sample,
    pairs: Sequence[Pair],
    *,
    terms: Terms,
    scores: Mapping[str, Shaped[np.ndarray, " token"]],
    plan: Resampling,
    attrs: Mapping[str, object],
) -> Estimated:
    """Estimate E1 to E3.

    Args:
        tokens: that the sample was read from.
        sample: of `with_shared_rollouts`.
        pairs: of `pairs_of`.
        terms: of `terms_of`.
        scores: further scores that the steps get, in the order of `tokens`.
        plan: the draws.
        attrs: of every Dataset.
    """
    found: dict[str, xr.Dataset] = {}
    found["read"], found["read_by_family"] = read(
        sample, pairs, terms=terms, plan=plan, attrs=attrs
    )
    told = informative(sample, pairs, terms=terms, plan=plan, attrs=attrs)
    if told is not None:
        found["informative"], found["controls"] = told
    lacking, steps = knows_steps(tokens), None
    if not lacking:
        steps = steps_of(tokens, sample, pairs, terms=terms, scores=scores)
        found["beyond"] = beyond(steps, families=tuple(terms.placebo), plan=plan, attrs=attrs)
    reasons = {"informative": NO_MIXED, "drives": NO_GRADIENT, "beyond": lacking}
    return Estimated(found, reasons, steps)


def primaries(
    tokens: xr.Dataset,
    sample: Sample,
    pairs: Sequence[Pair],
    *,
    terms: Terms,
    scores: Mapping[str, Shaped[np.ndarray, " token"]],
    plan: Resampling,
    attrs: Mapping[str, object],
    drives: xr.Dataset | None = None,
) -> dict[str, xr.Dataset]:
    """Estimate E1 to E3, and decide.

    Args:
        tokens: as for `estimate`.
        sample: as for `estimate`.
        pairs: as for `estimate`.
        terms: as for `estimate`.
        scores: as for `estimate`; they take part in the choice of steps.
        plan: the draws.
        attrs: of every Dataset.
        drives: the triple of E4 with statistic `share`, its `p` and `statement` in the attributes;
            None where no gradient was taken.

    Returns:
        `read` (statistic, term), `read_by_family` (family), `informative` (statistic, term) and
        `controls` (statistic, score), `beyond` (statistic, term), `step_choice` (statistic, score),
        `decision` (endpoint); those that cannot be had are missing, and `decision` says why.
    """
    found, reasons, steps = estimate(
        tokens, sample, pairs, terms=terms, scores=scores, plan=plan, attrs=attrs
    )
    if steps is not None:
        chosen = step_choice(steps, families=tuple(terms.placebo), plan=plan, attrs=attrs)
        if chosen is not None:
            found["step_choice"] = chosen
    results = found if drives is None else {**found, "drives": drives}
    found["decision"] = decide(results, reasons=reasons, attrs=attrs)
    return found
