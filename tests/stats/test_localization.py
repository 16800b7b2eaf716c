import numpy as np
import pytest

from tests.stats.builders import made_up_tokens
from tests.stats.test_ranking import plain_auroc, plain_hit, plain_precision
from tokensense.errors import SchemaError
from tokensense.stats.localization import DIRECTIONS, STATISTICS, localization
from tokensense.stats.ranking import Traces
from tokensense.stats.resampling import Method


def planted(*, seed=0, shift=-0.1, **sizes):
    """Made-up tokens: the rarest of four in each wrong response is wrong, less likely under pos."""
    tokens = made_up_tokens(
        seed=seed, **{"problems": 25, "length": (6, 14), "generators": tuple("abcd"), **sizes}
    )
    rng = np.random.default_rng(seed)
    length = tokens["length"].values
    start = np.cumsum(length) - length
    base = tokens["logp"].values[0]
    wrong = np.zeros(tokens.sizes["token"], bool)
    for first, size in zip(start, length, strict=True):
        if tokens["reward"].values[first] == 0:
            drawn = first + rng.choice(size, 4, replace=False)
            wrong[drawn[np.argmin(base[drawn])]] = True
    level, family = tokens["level"].values, tokens["family"].values
    for side, sign in (("pos", 1), ("neg", -1)):
        rows = (level == side) & (family == "verdict")
        tokens["logp"].values[np.ix_(rows, wrong)] += sign * shift
    tokens["entropy"].values[:] = rng.random(tokens.sizes["token"])
    return tokens.assign_coords(is_wrong_token=("token", wrong))


@pytest.fixture(scope="module")
def tokens():
    return planted()


@pytest.fixture(scope="module")
def result(tokens):
    return localization(tokens, resamples=200)


def wrong_traces(tokens):
    """Tokens of the wrong responses as the plain versions read them."""
    inside = tokens["reward"].values == 0
    owner = tokens["rollout"].values[inside]
    _, length = np.unique(owner, return_counts=True)
    marked = tokens["is_wrong_token"].values[inside]
    return inside, Traces(marked, np.zeros(owner.size, np.int64), length, 1)


def test_what_there_is(tokens, result):
    assert result["estimate"].dims == ("statistic", "score")
    assert result["statistic"].values.tolist() == list(STATISTICS)
    assert result["score"].values.tolist() == list(DIRECTIONS)
    assert result["direction"].values.tolist() == list(DIRECTIONS.values())
    assert np.isin(result["method"], [Method.BOOTSTRAP, Method.NONE_NO_VARIATION]).all()
    assert (result["method"].sel(statistic="auroc") == Method.BOOTSTRAP).all()
    low, high = result["interval"].sel(statistic="auroc").transpose("bound", ...).values
    assert (low < high).all()
    assert result.attrs["off_policy"] == 1
    inside, traces = wrong_traces(tokens)
    assert result.attrs["n_rollouts"] == traces.length.size
    assert result.attrs["n_tokens"] == inside.sum()


def test_every_score_agrees_with_plain_loops(tokens, result):
    inside, traces = wrong_traces(tokens)
    z = (tokens["logp"] - tokens["logp"].sel(condition="base")).astype(float)
    logp = tokens["logp"].values[0].astype(float)
    frames = ("f0", "f1")

    def mean(family, side):
        return np.mean([z.sel(condition=f"{family}.{f}.{side}").values for f in frames], axis=0)

    plus, minus = mean("verdict", "pos"), mean("verdict", "neg")
    start = np.concatenate([[0], np.cumsum(tokens["length"].values)[:-1]])
    owner = tokens["rollout"].values
    within = np.arange(owner.size) - start[owner]
    scores = {
        "sensitivity": np.maximum(abs(plus), abs(minus)),
        "signed_contrast": (minus - plus) / 2,
        "absolute_contrast": abs(plus - minus) / 2,
        "surprisal": -logp,
        "entropy": tokens["entropy"].values[0].astype(float),
        "position": (within + 0.5) / tokens["length"].values[owner],
    }
    surprisal = -logp[inside]
    cuts = sorted(surprisal[traces.marked])
    edges = []
    for k in range(1, 10):
        place = k / 10 * (len(cuts) - 1)
        low = int(place)
        edges.append(cuts[low] + (place - low) * (cuts[low + 1] - cuts[low]))
    stratum = np.array([1 + sum(s >= e for e in edges) for s in surprisal])
    stratum[surprisal < cuts[0]] = 0
    stratum[surprisal > cuts[-1]] = 11
    kinds = tokens["kind"].values[inside]
    both = np.array([f"{bin} {kind}" for bin, kind in zip(stratum, kinds, strict=True)])
    rivals = [(both[~traces.marked] == own).any() for own in both[traces.marked]]
    assert result["n_compared"].sel(statistic="auroc_at_equal_surprisal_and_kind") == sum(rivals)
    assert result["n_compared"].sel(statistic="auroc") == traces.length.size
    for name, values in scores.items():
        score = values[inside]
        expected = [
            plain_auroc(score, traces.marked, np.zeros(score.size)),
            plain_auroc(score, traces.marked, stratum),
            plain_auroc(score, traces.marked, both),
            plain_precision(score, traces.marked),
            plain_hit(score, traces),
        ]
        np.testing.assert_allclose(
            result["estimate"].sel(score=name), expected, atol=1e-9, err_msg=name
        )
    placebos = [
        plain_hit(abs(mean(f, "pos") - mean(f, "neg"))[inside], traces)
        for f in ("placebo-0", "placebo-1", "placebo-2")
    ]
    at = result["estimate"].sel(score="placebo_absolute_contrast", statistic="hit_at_1")
    assert at.item() == pytest.approx(np.mean(placebos), abs=1e-12)


def test_a_kind_is_judged_by_how_often_it_goes_wrong(tokens, result):
    inside, traces = wrong_traces(tokens)
    kind = tokens["kind"].values[inside]
    rates = np.array([traces.marked[kind == k].mean() for k in kind])
    expected = plain_auroc(rates, traces.marked, np.zeros(kind.size))
    at = result["estimate"].sel(score="kind")
    assert at.sel(statistic="auroc").item() == pytest.approx(expected, abs=1e-12)
    assert at.sel(statistic="auroc_at_equal_surprisal_and_kind") == 0.5


def test_planted_contrast_is_found_and_rarity_is_seen_through(result):
    at = result["estimate"]
    assert at.sel(score="signed_contrast", statistic="auroc_at_equal_surprisal") > 0.75
    assert at.sel(score="surprisal", statistic="auroc") > 0.75
    for rare in ("surprisal", "onehot_distance"):
        twin = result.sel(score=rare, statistic="auroc_at_equal_surprisal")
        assert twin["estimate"] < 0.65
    for blind in ("random", "entropy"):
        at = result.sel(score=blind, statistic="auroc")
        assert abs(at["estimate"] - 0.5) < 3 * at["error"]


def test_shifts_that_only_follow_rarity_lose_to_chance_at_equal_surprisal():
    # Placebo and paragraph shifts are scaled by ||onehot - p||; the verdict's too, without a plant.
    found = localization(planted(shift=0.0, problems=100, frames=1), resamples=100)
    raw = found.sel(score="sensitivity", statistic="auroc")
    twin = found.sel(score="sensitivity", statistic="auroc_at_equal_surprisal")
    assert raw["interval"].values[0] > 0.55
    assert twin["interval"].values[0] < 0.5 < twin["interval"].values[1]


def test_one_wrong_token_a_bin_still_stands_in_the_middle_of_it():
    # Borders upon the wrong tokens would make each of them the least surprising of its bin.
    found = localization(planted(problems=8, group=2, generators=("a",)), resamples=100)
    assert found.attrs["n_rollouts"] < 14
    at = found["estimate"].sel(score="surprisal", statistic="auroc_at_equal_surprisal")
    assert 0.3 < at < 0.8


def test_given_scores_stand_beside_in_the_order_of_the_tokens(tokens):
    order = np.random.default_rng(0).permutation(tokens.sizes["token"])
    weight = tokens["is_wrong_token"].values * 2.0
    scores = {"cscr": weight, "constant": np.ones(order.size, np.float32)}
    found = localization(tokens, scores=scores, resamples=100)
    mixed = localization(
        tokens.isel(token=order), scores={k: v[order] for k, v in scores.items()}, resamples=100
    )
    at = found["estimate"].sel(score="cscr")
    assert at.values.tolist() == [1.0, 1.0, 1.0, 1.0, 1.0]
    assert found["estimate"].sel(score="constant", statistic="auroc") == 0.5
    _, traces = wrong_traces(tokens)
    chance = np.mean(1 / traces.length)
    constant = found["estimate"].sel(score="constant")
    assert constant.sel(statistic="hit_at_1").item() == pytest.approx(chance)
    assert constant.sel(statistic="average_precision").item() == pytest.approx(traces.marked.mean())
    assert found["direction"].sel(score="cscr") == "as given: high is blamed"
    np.testing.assert_allclose(
        mixed["estimate"].sel(score=["cscr", "constant", "surprisal", "sensitivity"]),
        found["estimate"].sel(score=["cscr", "constant", "surprisal", "sensitivity"]),
    )


@pytest.mark.parametrize("name", ["surprisal", "weight"])
def test_scores_of_another_length_or_with_a_name_of_ours_are_refused(tokens, name):
    size = tokens.sizes["token"] - (name == "weight")
    with pytest.raises(SchemaError, match=f"{name!r} has shape"):
        localization(tokens, scores={name: np.ones(size)}, resamples=100)


def test_nan_has_no_rank_and_minus_infinity_the_lowest(tokens):
    holes = np.zeros(tokens.sizes["token"])
    holes[tokens["reward"].values == 0] = np.nan
    lowest = np.where(tokens["is_wrong_token"].values, -np.inf, 0.0)
    found = localization(tokens, scores={"holes": holes, "lowest": lowest}, resamples=100)
    assert (found["method"].sel(score="holes") == Method.NONE_UNDEFINED).all()
    assert "not estimable: NaN on some tokens in holes" in found.attrs["statement"]
    assert found["estimate"].sel(score="lowest", statistic="auroc") == 0.0


def test_where_no_wrong_token_is_known_there_is_no_result(tokens):
    assert localization(tokens.drop_vars("is_wrong_token"), resamples=100) is None
    none = np.zeros(tokens.sizes["token"], bool)
    assert localization(tokens.assign_coords(is_wrong_token=("token", none))) is None


def test_right_by_luck_and_cut_off_responses_are_counted_and_left_out():
    tokens = planted(problems=20)
    reward, wrong = tokens["reward"].values.copy(), tokens["is_wrong_token"].values.copy()
    owner = tokens["rollout"].values
    failed = np.unique(owner[wrong])
    reward[np.isin(owner, failed[:3])] = 1.0
    wrong[np.isin(owner, failed[3:5])] = False
    tokens = tokens.assign_coords(reward=("token", reward), is_wrong_token=("token", wrong))
    tokens["comparable"].values[1, failed[6]] = False
    found = localization(tokens, resamples=100)
    assert found.attrs["n_rollouts"] == failed.size - 6
    assert found.attrs["n_right_with_wrong_token"] == 3
    assert found.attrs["n_wrong_without_wrong_token"] == 2
    assert found.attrs["n_not_comparable"] == 1
    assert "3 right ones with one (by luck), 1 not comparable" in found.attrs["statement"]


def test_nothing_but_luck_is_said_to_be_not_estimable():
    tokens = planted(problems=4)
    tokens = tokens.assign_coords(reward=("token", np.ones(tokens.sizes["token"])))
    found = localization(tokens, resamples=100)
    assert (found["method"] == Method.NONE_FEW_PROBLEMS).all() or np.isnan(found["estimate"]).all()
    assert "not estimable: no wrong response" in found.attrs["statement"]


@pytest.mark.parametrize(
    ("problems", "method"),
    [(1, Method.NONE_FEW_PROBLEMS), (6, Method.NONE_FEW_PROBLEMS), (14, Method.T_INTERVAL)],
)
def test_few_problems(problems, method):
    found = localization(planted(problems=problems), resamples=100)
    at = found.sel(score="entropy", statistic="auroc")
    assert at["method"] == method
    assert np.isnan(at["interval"].values).all() == (method != Method.T_INTERVAL)


def test_two_wrong_tokens_in_one_response_are_refused(tokens):
    every = np.ones(tokens.sizes["token"], bool)
    with pytest.raises(SchemaError, match="at most one token a rollout"):
        localization(tokens.assign_coords(is_wrong_token=("token", every)))


def test_without_placebos_their_scores_are_missing(tokens):
    verdicts = tokens.isel(condition=np.flatnonzero(tokens["probe"].values != "placebo"))
    found = localization(verdicts, resamples=100)
    assert not [name for name in found["score"].values if name.startswith("placebo")]
