"""Made-up stores: shifts shaped like those of real traces, and results written down by hand."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from tokensense.figures.tokens import Question
from tokensense.schema import Variable, attributes
from tokensense.stats.resampling import Method
from tokensense.stats.triples import TERMS

KINDS = ("other", "digit", "operator", "connective", "final_answer", "copied", "format")
FRAMES = ("review", "note")
WORDS = {"verdict": 0.09, "color": 0.085, "day": 0.08, "place": 0.09}
FLAGS = attributes(Variable((), "int8", "1", "how the interval was made", Method))
PROVENANCE = {
    "sampled_by": ["made-up-7b"],
    "scored_by": "SmolLM2-135M-Instruct (Q4_1, dequantized)",
    "off_policy": True,
    "store": "runs/made-up.zarr",
    "commit": "0123abc",
}


def flat_tokens(*, rollouts: int = 24, mean_length: int = 60, seed: int = 0) -> xr.Dataset:
    """What `Study.tokens()` gives: heavy-tailed shifts that grow with surprisal, mostly one way."""
    rng = np.random.default_rng(seed)
    length = rng.integers(mean_length // 2, 3 * mean_length // 2, rollouts)
    owner = np.repeat(np.arange(rollouts), length)
    count = int(length.sum())
    surprisal = rng.exponential(0.6, count) * (rng.random(count) < 0.6) + 1e-4
    kind = rng.choice(KINDS, count, p=(0.3, 0.2, 0.12, 0.15, 0.03, 0.1, 0.1))
    labels = [("base", "base", "none", "none", "none", "none")]
    logp = [-surprisal]
    for family, size in WORDS.items():
        for frame in FRAMES:
            scale = size * (0.15 + surprisal) / (0.15 + surprisal.mean())
            common = rng.standard_t(3, count) * scale * 0.9 - 0.3 * scale
            spread = rng.standard_t(4, count) * scale * (0.13 if family == "verdict" else 0.10)
            for level, side in (("pos", common + spread), ("neg", common - spread)):
                probe = "opposed" if family == "verdict" else "placebo"
                labels.append((f"{family}/{frame}/{level}", probe, family, level, frame, "w1"))
                logp.append(np.minimum(-surprisal + side, 0.0))
    columns = np.array(labels).T
    names = ("condition", "probe", "family", "level", "frame", "wording")
    per_rollout = {
        "problem": np.arange(rollouts),
        "cluster": np.arange(rollouts),
        "rollout": np.arange(rollouts),
        "reward": rng.integers(0, 2, rollouts).astype(np.float32),
        "generator": np.repeat("made-up-7b", rollouts),
    }
    shape = (len(labels), count)
    square = np.exp(-2 * surprisal) + 0.3 * (1 - np.exp(-surprisal)) ** 2
    return xr.Dataset(
        {
            "logp": (("condition", "token"), np.array(logp, dtype=np.float32)),
            "p_square_sum": (
                ("condition", "token"),
                np.broadcast_to(square, shape).astype(np.float32),
            ),
            "comparable": (("condition", "rollout"), np.ones((len(labels), rollouts), dtype=bool)),
            "length": ("rollout", length),
        },
        coords={
            **{name: ("condition", values) for name, values in zip(names, columns, strict=True)},
            "tone": ("condition", np.repeat("none", len(labels))),
            "placement": ("condition", np.repeat("user_end", len(labels))),
            **{name: ("token", values[owner]) for name, values in per_rollout.items()},
            "kind": ("token", kind),
            "token_id": ("token", np.arange(count) % 50),
        },
        attrs=PROVENANCE,
    )


def points(positive, negative, *, terms=("verdict", "placebo")) -> xr.Dataset:
    """Points of the shift panels from rows of shifts, one row a pair."""
    rows = {"positive": np.array(positive, np.float32), "negative": np.array(negative, np.float32)}
    pairs = len(terms)
    return xr.Dataset(
        {name: (("pair", "token"), values) for name, values in rows.items()},
        coords={
            "pair": [f"pair{index}" for index in range(pairs)],
            "term": ("pair", list(terms)),
            "family": ("pair", [f"family{index}" for index in range(pairs)]),
            "frame": ("pair", ["review"] * pairs),
        },
        attrs=PROVENANCE,
    )


def result(estimate, low, high, coords: dict[str, list[str]], *, counts: dict) -> xr.Dataset:
    """A result of `stats` from arrays over `coords`; `counts` name -> (dims, values)."""
    dims = tuple(coords)
    estimate, low, high = (np.asarray(values, dtype=np.float64) for values in (estimate, low, high))
    return xr.Dataset(
        {
            "estimate": (dims, estimate),
            "interval": ((*dims, "bound"), np.stack([low, high], axis=-1)),
            "error": (dims, (high - low) / 4),
            "method": (dims, np.full(estimate.shape, Method.BOOTSTRAP, dtype=np.int8), FLAGS),
            "n_clusters": (dims, np.full(estimate.shape, 21)),
            **counts,
        },
        coords={**coords, "bound": ["low", "high"]},
        attrs=PROVENANCE | {"level": 0.95, "resamples": 1000, "seed": 0, "statements": "[]"},
    )


TRIPLE_VALUES = {
    # statistic: verdict, placebo
    "same_direction": (0.951, 0.962),
    "correlation": (0.93, 0.94),
    "contrast_variance_share": (0.018, 0.012),
    "sensitivity_to_surprisal": (0.86, 0.85),
    "mean_absolute_shift": (0.091, 0.084),
    "mean_absolute_contrast": (0.0106, 0.0101),
}


def triple(values: dict[str, tuple[float, float]] = TRIPLE_VALUES) -> xr.Dataset:
    """Verdict, placebo and difference of each statistic, intervals of plus and minus 2 %."""
    table = np.array([(*pair, pair[0] - pair[1]) for pair in values.values()])
    half = 0.02 * np.abs(table[:, :1]) * np.ones(3)
    counts = {
        "n_rollouts": ("term", [24, 24, 24]),
        "n_tokens": (("statistic", "term"), np.full(table.shape, 1234.0)),
    }
    coords = {"statistic": list(values), "term": list(TERMS)}
    return result(table, table - half, table + half, coords, counts=counts)


def kind_and_balance(names=KINDS, *, seed: int = 0) -> tuple[xr.Dataset, xr.Dataset]:
    """Shift by kind on three scales and how many tokens were matched."""
    rng = np.random.default_rng(seed)
    scales = ("mean", "log_ratio", "log_ratio_matched")
    estimate = rng.normal(0.0, 0.4, (3, 1, len(names), 3))
    estimate[0] = np.abs(estimate[0])
    half = rng.uniform(0.02, 0.2, estimate.shape)
    coords = {
        "scale": list(scales),
        "measure": ["absolute_shift"],
        "kind": list(names),
        "term": list(TERMS),
    }
    tokens = rng.integers(10, 20_000, len(names))
    counts = {"n_tokens": ("kind", tokens), "n_rollouts": ("kind", np.minimum(tokens, 24))}
    kind = result(estimate, estimate - half, estimate + half, coords, counts=counts)
    share = xr.Dataset(
        {"matched_share": ("kind", rng.uniform(0.5, 1.0, len(names)))},
        coords={"kind": list(names)},
        attrs=PROVENANCE,
    )
    return kind, share


def traced(traces: Sequence[Sequence[bytes]], *, seed: int = 0) -> dict[str, Any]:
    """Arguments of `token_view` for traces of one problem, given as the bytes of their tokens.

    Rewards are wrong, right, undecided in turn. Steps hold four tokens; every wrong trace has its
    labelled wrong step 1, and its first wrong token at place 5, where it is long enough.
    """
    rng = np.random.default_rng(seed)
    words = sorted({token for trace in traces for token in trace})
    length = np.array([len(trace) for trace in traces], dtype=np.int64)
    owner, count = np.repeat(np.arange(len(traces)), length), int(length.sum())
    place = np.arange(count) - np.repeat(np.cumsum(length) - length, length)
    reward = np.resize([0.0, 1.0, np.nan], len(traces))
    surprisal = rng.exponential(1.0, count)
    positive, negative = rng.standard_t(2, (2, count)) * 0.2 * surprisal
    state = np.resize([0, 1, 1, 2], count)
    positive[state == 2] = np.nan
    wrong = (reward == 0.0)[owner]
    flags = {"flag_meanings": "resolved unresolved not_known"}
    tokens = xr.Dataset(
        {
            "logp": (("condition", "token"), -surprisal[None].astype(np.float32)),
            "entropy": (("condition", "token"), rng.exponential(1.0, (1, count))),
            "wrong_step": ("rollout", np.where(reward == 0.0, 1, -1)),
            "positive": ("token", positive),
            "negative": ("token", negative),
            "contrast": ("token", (positive - negative) / 2),
            "floor": ("token", np.full(count, 0.05)),
            "state": ("token", state.astype(np.int8), flags),
            "weight": (("rule", "token"), np.stack([np.ones(count), rng.gamma(1.0, 1.0, count)])),
        },
        coords={
            "rule": ["uniform", "cscr"],
            "rollout": ("token", owner),
            "problem": ("token", np.zeros(count, dtype=np.int64)),
            "reward": ("token", reward[owner]),
            "generator": ("token", np.repeat("made-up-7b", count)),
            "kind": ("token", np.resize(KINDS, count)),
            "step": ("token", place // 4),
            "is_wrong_token": ("token", wrong & (place == 5)),
            "token_id": ("token", [words.index(token) for trace in traces for token in trace]),
        },
        attrs={"wordings": 6},
    )
    return {
        "tokens": tokens,
        "questions": {0: Question("p0", "How many?")},
        "vocabulary": dict(enumerate(words)),
    }
