"""Ratios of surface and content against plain loops, and what the page says."""

import math

import numpy as np
import pandas as pd
import pytest

import tokensense as ts
from studies import shift_diagnosis as study
from studies.shift_claims import SURFACE, kind_ratios
from studies.shift_page import draw, page, would_change
from tests.stats.builders import made_up_tokens
from tokensense.schema import BASE
from tokensense.stats.kinds import CALIPER

OTHER = 0.3  # share of tokens of no kind


@pytest.fixture(scope="module")
def tokens():
    made = made_up_tokens(problems=12, group=2, length=(60, 90), families=1, neutral=False)
    rng = np.random.default_rng(3)
    kind = np.where(rng.random(made.sizes["token"]) < OTHER, "other", made.kind.values)
    made.entropy.values[:] = rng.random(made.sizes["token"])
    return made.assign_coords(kind=("token", kind)).isel(condition=made.probe.values != "placebo")


def test_ratios_are_those_of_plain_loops(tokens):
    found = kind_ratios(tokens, resamples=200, seed=0)
    logp = tokens.logp.values.astype(np.float64)
    z = np.abs(logp[1:] - logp[0])  # verdicts in two sentences, two sides each
    size, kind = z.mean(axis=0), tokens.kind.values
    judged = kind != "other"
    surface, content = np.isin(kind, SURFACE), judged & ~np.isin(kind, SURFACE)
    raw = math.log(size[surface].mean() / size[content].mean())
    assert found[7].estimate == pytest.approx(raw)
    assert found[7].low < raw < found[7].high
    assert f"{surface.sum()} surface tokens, {content.sum()} of content" in found[7].n

    place = np.log(-logp[0] + 1e-3)
    entropy = tokens.entropy.sel(condition=BASE).values.astype(np.float64)
    caliper = CALIPER * place[judged].std()
    edges = np.quantile(entropy[judged], (1 / 3, 2 / 3))
    owner = tokens["rollout"].values
    first = np.searchsorted(owner, owner)
    length = np.bincount(owner)[owner]
    third = np.minimum((np.arange(owner.size) - first + 0.5) / length * 3, 2).astype(int)
    own, partners = [], []
    for i in np.flatnonzero(surface):
        alike = [
            j
            for j in np.flatnonzero(content & (owner == owner[i]) & (third == third[i]))
            if abs(place[j] - place[i]) <= caliper
            and (entropy[i] > edges).sum() == (entropy[j] > edges).sum()
        ]
        if alike:
            own.append(size[i])
            partners.append(size[alike].mean())
    assert len(own) > 5
    matched = math.log(np.mean(own) / np.mean(partners))
    assert found[8].estimate == pytest.approx(matched)
    assert f"{len(own) / surface.sum():.0%} of surface tokens matched" in found[8].n


def test_one_sort_of_tokens_has_no_ratio(tokens):
    alone = tokens.assign_coords(kind=("token", np.full(tokens.sizes["token"], "digit")))
    for one in kind_ratios(alone, resamples=100, seed=0).values():
        assert math.isnan(one.estimate)
        assert math.isnan(one.low)
    nothing = tokens.assign_coords(kind=("token", np.full(tokens.sizes["token"], "other")))
    assert math.isnan(kind_ratios(nothing, resamples=100, seed=0)[8].estimate)


def lines(word, *, estimate=0.62, statement="informative, margin 0.06"):
    known = not math.isnan(estimate)
    return pd.DataFrame(
        {
            "store": "s",
            "endpoint": ["read", "informative", "beyond"],
            "meaning": ["E1: x", "E2: y", "E3: z"],
            "estimate": [1.0, estimate, math.nan],
            "low": [0.5, 0.57 if known else math.nan, math.nan],
            "high": [1.5, 0.67 if known else math.nan, math.nan],
            "p": [0.05, 0.01 if known else math.nan, math.nan],
            "p_holm": [0.05, 0.02 if known else math.nan, math.nan],
            "n_clusters": [40, 40, -1],
            "n_rollouts": [80, 80, -1],
            "statement": ["verdict ranks 1 of 20, p .05", statement, "not estimable: no step"],
            "word": word,
            "beside": ["", "Beside it, length 0.500", ""],
        }
    )


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (lines("placebo_like"), "would have to rank first"),
        (lines("not_estimable"), "E2 by itself: 0.620; informative, margin 0.06."),
        (lines("inconclusive", estimate=math.nan, statement="not estimable: few"), "E2: not esti"),
        (lines("inconclusive"), "about 0.620 now, wholly above .56 or within"),
        (lines("read_and_informative"), "It would fall with E2's 90 % interval"),
    ],
)
def test_what_would_change_the_word(own, said):
    assert said in would_change(own)


def test_the_page_says_what_there_is_and_what_is_not(tmp_path):
    text = page(lines("inconclusive"), {"s": ("read", "it is so")}, claims={})
    assert "Planted truth: it is so." in text
    assert "* E1: x: 1.000 [0.500, 1.500], p 0.05, Holm 0.05; 40 texts, 80 rollouts." in text
    assert "* E3: z: not estimable: no step" in text
    assert "informative, margin 0.06. Beside it, length 0.500\n" in text
    assert "nan" not in text
    draw(lines("inconclusive"), tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 5000


@pytest.mark.slow
def test_a_tiny_run_writes_tables_figures_and_page_and_analyzes_once(tmp_path, monkeypatch):
    study.main(study.TINY, out=tmp_path, variants=("truthful",))
    decisions = pd.read_csv(tmp_path / "decision.csv")
    assert decisions["endpoint"].tolist() == ["read", "informative", "beyond", "drives"]
    claims = pd.read_csv(tmp_path / "claims.csv").set_index("row")
    assert claims.index.tolist() == [1, 4, 5, 7, 8]
    assert claims.loc[4, "verdict"] == "not testable here"  # 24 problems, 300 mixed ones needed
    assert (tmp_path / "figures" / "tiny_truthful" / "triples.png").exists()
    before = (tmp_path / "page.md").read_text()
    monkeypatch.setattr(ts, "analyze", None)
    study.main(study.TINY, out=tmp_path, variants=("truthful",))
    assert (tmp_path / "page.md").read_text() == before
