"""A shipped policy and short problems, so that a whole run takes a second or two."""

from dataclasses import replace

import pytest

from tokensense.models.policy import Policy, load_policy
from tokensense.trainer.config import TrainConfig
from tokensense.trainer.problems import planted

# Regime C of the notes: three look-ups, no filler, about 18 tokens a response.
SHORT = {"lookups": 3, "filler_mean": 0.0}


@pytest.fixture(scope="session")
def policy():
    """Never changed: training works on a copy."""
    return load_policy("tiny:tables")


@pytest.fixture(scope="session")
def task():
    return planted("tables", held_out=8, **SHORT)


@pytest.fixture(scope="session")
def config():
    return TrainConfig(
        steps=4,
        problems=2,
        group=4,
        max_new_tokens=32,
        evaluate_every=2,
        checkpoint_every=2,
        learning_rate=1e-3,
    )


@pytest.fixture(scope="session")
def reader():
    """A policy that is asked in English: it knows digits, `right` and `wrong`, no other word."""
    made = load_policy("tiny:mixed")
    return Policy(made.model, made.tokenizer, name="reader", wordings="english")


@pytest.fixture(scope="session")
def english():
    """Sums, each with a solution that can be told."""
    sums = planted("arithmetic", held_out=8)

    def draw(count, seed):
        return [replace(problem, solution="4 + 3 is 7 .") for problem in sums.draw(count, seed)]

    return sums._replace(draw=draw)
