"""Of which distribution engines' log-probabilities are, against distributions made by hand."""

import numpy as np
import pytest

from tokensense.errors import InputError
from tokensense.rollouts.engine import Engine, engine

LOGITS = np.log([0.5, 0.3, 0.15, 0.05])


def log_softmax(z):
    return z - np.log(np.exp(z).sum())


def reported(settings):
    """What an engine reports for each token, by definition."""
    if settings.mode == "raw":
        return log_softmax(LOGITS)
    z = log_softmax(LOGITS / settings.temperature)
    order = np.argsort(-z)
    before = np.cumsum(np.exp(z[order])) - np.exp(z[order])
    kept = order[before < settings.top_p]
    if settings.top_k > 0:
        kept = kept[: settings.top_k]
    cut = np.full(z.shape, -np.inf)
    cut[kept] = log_softmax(z[kept])
    return cut


@pytest.mark.parametrize("mode", ["raw", "processed"])
@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
@pytest.mark.parametrize("top_p", [0.8, 1.0])
@pytest.mark.parametrize("top_k", [-1, 0, 2])
def test_comparable_is_what_equals_the_log_softmax_of_the_logits(mode, temperature, top_p, top_k):
    """Pitfall 22: converted only when exactly invertible, which here is when nothing was done."""
    settings = Engine(mode, temperature, top_p, top_k)
    equal = np.allclose(reported(settings), log_softmax(LOGITS), rtol=0, atol=1e-12)
    assert (settings.not_comparable == "") == equal


def test_the_numbers_of_pitfall_22():
    """Pitfall 22: top-p 0.8 of (.5, .3, .15, .05) keeps .8: trainer / engine is .8."""
    settings = Engine("processed", 1.0, 0.8, -1)
    ratio = np.exp(log_softmax(LOGITS) - reported(settings))[:2]
    np.testing.assert_allclose(ratio, 0.8, rtol=1e-12)
    assert settings.distribution == "top-p"
    assert "their mass is not kept" in settings.not_comparable
    assert Engine("processed", 0.6, 1.0, -1).not_comparable.startswith("of temperature 0.6")


@pytest.mark.parametrize(
    ("settings", "distribution"),
    [
        (None, "unknown"),
        ({"temperature": 1}, "unknown"),  # raw or processed?
        ({"mode": "raw", "temperature": 0.6, "top_p": 0.9}, "raw"),
        ({"mode": "processed", "temperature": 1}, "unknown"),  # top-p?
        ({"mode": "processed", "top_p": 1, "top_k": -1}, "temperature"),  # which?
        ({"mode": "processed", "top_k": "50"}, "top-p"),
    ],
)
def test_what_is_not_said_is_not_assumed(settings, distribution):
    found = engine(settings)
    assert found.distribution == distribution
    assert found.attributes()["comparable"] == (distribution == "raw")
    assert None not in found.attributes().values()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"topp": 1}, r"names of \['mode', 'temperature', 'top_p', 'top_k'\]; \['topp'\] came"),
        ({"mode": "raw_logprobs"}, "one of .*'raw_logprobs' came"),
        ({"temperature": "warm"}, r"`temperature` needs a number in \[0, inf\]; 'warm' came"),
        ({"temperature": "inf"}, "'inf' came"),
        ({"temperature": "nan"}, "'nan' came"),
        ({"top_p": 1.2}, r"`top_p` needs a number in \[0, 1\]; 1.2 came"),
    ],
)
def test_other_settings_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        engine(settings)
