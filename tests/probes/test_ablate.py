"""Drops of spans against the slow reference, and where only the last token matters."""

import numpy as np
import pytest

from tests.bigram import bigram_logp, bigram_policy
from tests.probes.tiny import tiny_policy
from tests.reference.scorer import reference_scores
from tokensense.errors import SchemaError
from tokensense.models.plan import Branch
from tokensense.probes.ablate import Span, ablate

BRANCH = Branch((5, 6, 7), tuple(range(20, 32)))
SPANS = [Span(0, 2, 5, 8, 12), Span(0, 0, 1, 1, 3), Span(0, 3, 3, 3, 12)]


@pytest.mark.parametrize("filler", [None, 0])
def test_drops_are_those_of_sequences_scored_alone(filler):
    policy = tiny_policy()
    found = ablate(policy, [BRANCH], SPANS, filler=filler)
    context, response = list(BRANCH.context), list(BRANCH.response)
    for drop, span in zip(found, SPANS, strict=True):
        left = [] if filler is None else [filler] * (span.end - span.start)
        answer = response[span.answer_start : span.answer_end]
        whole, without = (
            reference_scores(
                policy.model,
                [*context, *response[: span.start], *kept, *response[span.end : span.answer_start]],
                answer,
            )["logp"]
            for kept in (response[span.start : span.end], left)
        )
        assert drop == pytest.approx(sum(whole) - sum(without), abs=1e-4)
    assert abs(found[0]) > 1e-3
    assert filler == 0 or found[2] == 0  # nothing was taken out


def test_of_a_bigram_policy_only_the_span_right_before_matters():
    table = bigram_logp(bigram_policy())
    far, near = Span(0, 1, 3, 6, 9), Span(0, 1, 3, 3, 6)
    drops = ablate(bigram_policy(), [BRANCH], [far, near])
    assert drops[0] == 0
    assert drops[1] == pytest.approx(table[22, 23] - table[20, 23], abs=1e-5)
    assert np.isfinite(drops).all()


def test_a_span_behind_its_answer_is_refused():
    with pytest.raises(SchemaError, match=r"span 1 is \(0, 4, 6, 5, 9\)"):
        ablate(bigram_policy(), [BRANCH], [SPANS[0], Span(0, 4, 6, 5, 9)])
