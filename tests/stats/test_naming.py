import math
import re

import pytest

from tokensense.stats.naming import (
    MEANINGS,
    NOT_ESTIMABLE,
    QUANTITIES,
    THRESHOLDS,
    WORDS,
    Reading,
    Thresholds,
    decide,
)


def readings(gain=0.8, push=0.0, parting=0.0, auroc=0.5, *, half=0.05):
    """Readings of four estimates, with equally wide intervals; or as they are given."""
    given = dict(zip(QUANTITIES, (gain, push, parting, auroc), strict=True))
    return {
        name: value
        if isinstance(value, Reading)
        else Reading(value, value - half, value + half, "")
        for name, value in given.items()
    }


MISSING = Reading(math.nan, math.nan, math.nan, "not estimable: no value")


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (readings(0.1, push=2.0, parting=2.0, auroc=0.9), "random"),
        (readings(push=2.0, parting=1.0, auroc=0.75), "mixed"),
        (readings(push=2.0, parting=0.0, auroc=0.75), "style"),
        (readings(push=0.0, parting=0.0, auroc=0.95), "placebo"),
        (readings(push=0.2, parting=1.5, auroc=0.75), "truthful"),
        (readings(push=2.0, parting=0.0), "style"),
        (readings(push=-0.3, parting=-0.4), "placebo"),
        (readings(push=0.1, parting=1.0), "shuffled"),
        (readings(push=2.0, parting=1.0, auroc=0.57), "shuffled"),
        (readings(push=2.0, parting=0.0, auroc=MISSING), "style"),
        (readings(push=0.0, parting=0.0, auroc=MISSING), "placebo"),
        (readings(0.0, push=MISSING, parting=MISSING, auroc=MISSING), "random"),
    ],
)
def test_each_combination_has_its_word(found, word):
    said = decide(found)
    assert said.word == word
    assert said.statement.startswith(MEANINGS[word])
    assert "context_gain" in said.statement


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (readings(gain=MISSING), "context_gain: not estimable: no value"),
        (readings(push=MISSING), "push_ratio: not estimable: no value"),
        (readings(parting=MISSING), "contrast_ratio: not estimable: no value"),
        (readings(parting=1.0, auroc=MISSING), "auroc: not estimable: no value"),
        (readings(parting=1.0, auroc=0.2), "the contrast is turned around"),
        (readings(parting=1.0, auroc=0.59, half=0.01), "the contrast tells too little to name it"),
        (
            readings(parting=1.0, auroc=Reading(0.5, 0.3, 0.7, "")),
            r"auroc: 0\.50 \[0\.30, 0\.70\] is wider than \+-0\.13 and reaches across 0\.6",
        ),
        (readings(0.45, half=0.12), r"context_gain: .* is wider than \+-0\.1"),
        (readings(push=Reading(0.0, -1.0, 1.0, "")), "push_ratio: 0"),
    ],
)
def test_what_cannot_be_told_is_said_with_the_reason(found, reason):
    said = decide(found)
    assert said.word == NOT_ESTIMABLE
    assert re.search(reason, said.statement)


def test_borders_belong_above():
    at = THRESHOLDS
    border = readings(at.context_gain, push=at.push_ratio, parting=at.contrast_ratio)
    assert decide(border).word == "shuffled"
    below = readings(at.context_gain, push=at.push_ratio, parting=at.contrast_ratio - 1e-9)
    assert decide(below).word == "style"


def test_an_auroc_whose_interval_reaches_chance_does_not_tell():
    wide = Reading(0.62, 0.5, 0.74, "")
    assert decide(readings(parting=1.0, auroc=wide)).word == "shuffled"


def test_thresholds_are_frozen_and_have_a_digest_of_their_own():
    with pytest.raises(AttributeError):
        THRESHOLDS.auroc = 0.5
    assert THRESHOLDS.digest == Thresholds().digest
    assert Thresholds(auroc=0.61).digest != THRESHOLDS.digest
    assert set(MEANINGS) == set(WORDS)


def test_a_wide_interval_on_one_side_of_its_threshold_is_no_lack():
    wide = Reading(-0.6, -1.3, 0.1, "")
    assert decide(readings(push=wide, parting=2.0, auroc=0.9)).word == "truthful"
