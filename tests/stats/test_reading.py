import json
import math

import numpy as np
import pytest

from tests.stats.builders import made_up_tokens
from tokensense.stats.pairs import pairs_of, terms_of
from tokensense.stats.reading import read
from tokensense.stats.resampling import Method, Resampling
from tokensense.stats.sample import read_sample


def found_in(tokens, resamples=300):
    sample = read_sample(tokens)
    pairs = pairs_of(sample)
    plan = Resampling(sample.clusters, resamples, 0)
    return read(sample, pairs, terms=terms_of(sample, pairs), plan=plan, attrs={})


def contrasts(tokens, family, frames):
    """(token, frame) of d, as one would write it down."""
    sides = [
        np.stack([tokens.logp.sel(condition=f"{family}.f{f}.{s}").values for f in range(frames)], 1)
        for s in ("pos", "neg")
    ]
    return (sides[0].astype(float) - sides[1].astype(float)) / 2


def slow_lambda(tokens, family, frames):
    """Mean squares of each text, their mean over texts, then the log; and the other order."""
    d = contrasts(tokens, family, frames)
    cluster = tokens.cluster.values
    level, inner, logs = [], [], []
    for text in np.unique(cluster):
        own = d[cluster == text]
        mean = own.mean(axis=1)
        level.append(np.mean(frames * mean**2))
        inner.append(np.mean(((own - mean[:, None]) ** 2).sum(axis=1) / (frames - 1)))
        logs.append(math.log(level[-1] / inner[-1]))
    return math.log(np.mean(level) / np.mean(inner)), np.mean(logs)


@pytest.mark.parametrize("frames", [2, 6])
def test_agrees_with_the_slow_version(frames):
    tokens = made_up_tokens(problems=9, length=(3, 9), frames=frames, scenario="signal")
    triple, family = found_in(tokens)
    slow = {
        name: slow_lambda(tokens, name, frames)
        for name in ("verdict", "placebo-0", "placebo-1", "placebo-2")
    }
    for place, name in enumerate(("lambda", "mean_of_logs")):
        verdict = slow["verdict"][place]
        placebo = np.mean([slow[f"placebo-{i}"][place] for i in range(3)])
        at = triple.estimate.sel(statistic=name)
        np.testing.assert_allclose(at, [verdict, placebo, verdict - placebo], rtol=1e-4)
    for name, (value, _) in slow.items():
        assert family.estimate.sel(family=name).item() == pytest.approx(value, rel=1e-4)


def test_a_verdict_that_is_read_ranks_first_and_an_irrelevant_one_does_not():
    shape = {"problems": 20, "length": (15, 25), "frames": 6, "families": 9}
    triple, family = found_in(made_up_tokens(scenario="signal", effect=0.05, **shape))
    assert triple.attrs["rank"] == 1
    assert triple.attrs["p"] == triple.attrs["smallest_p"] == 0.1
    assert triple.attrs["first_share"] > 0.99
    assert triple.sel(statistic="lambda", term="difference").interval[0] > 0
    assert "problems and 6 frames drawn" in triple.attrs["statement"]
    assert family.sizes["family"] == 10
    triple, _ = found_in(made_up_tokens(**shape))
    assert triple.attrs["first_share"] < 0.8
    low, high = triple.sel(statistic="lambda", term="difference").interval.values
    assert low < 0 < high


@pytest.mark.parametrize("seed", range(3))
def test_the_rank_counts_the_families_that_are_not_below(seed):
    tokens = made_up_tokens(problems=10, length=(9, 12), frames=6, families=5, seed=seed)
    triple, family = found_in(tokens)
    values = family.estimate.values
    rank = 1 + int((values[1:] >= values[0]).sum())
    assert triple.attrs["rank"] == rank
    assert triple.attrs["p"] == rank / 6
    assert f"ranks {rank} of 6" in triple.attrs["statement"]
    if rank > 3:
        assert triple.attrs["first_share"] < 0.5


def test_a_verdict_that_ties_with_a_placebo_is_not_first():
    tokens = made_up_tokens(problems=10, length=(9, 12), frames=3, families=1, neutral=False)
    verdict = tokens.logp.values[tokens.family.values == "verdict"]
    tokens.logp.values[tokens.family.values == "placebo-0"] = verdict
    triple, _ = found_in(tokens)
    assert triple.attrs["rank"] == 2
    assert triple.attrs["first_share"] == 0.0


def test_two_wordings_of_a_family_are_averaged_over_their_lambdas():
    tokens = made_up_tokens(problems=9, length=(3, 9), frames=3, families=2, scenario="signal")
    one = slow_lambda(tokens, "placebo-0", 3)[0], slow_lambda(tokens, "placebo-1", 3)[0]
    names = tokens.family.values.astype("<U12")
    wording = tokens.wording.values.astype("<U12")
    wording[names == "placebo-1"] = "w1"
    names[names == "placebo-1"] = "placebo-0"
    _, family = found_in(
        tokens.assign_coords(family=("condition", names), wording=("condition", wording))
    )
    assert family.family.values.tolist() == ["verdict", "placebo-0"]
    assert family.estimate.sel(family="placebo-0").item() == pytest.approx(np.mean(one), rel=1e-4)


def test_frames_that_a_family_lacks_are_left_out_of_all():
    tokens = made_up_tokens(problems=9, length=(3, 5), frames=3)
    there = (tokens.family.values != "placebo-1") | (tokens.frame.values != "f1")
    triple, _ = found_in(tokens.isel(condition=there))
    assert json.loads(triple.attrs["frames"]) == ["f0/user_end", "f2/user_end"]
    assert triple.attrs["frames_left_out"] == 1


def test_only_rollouts_comparable_everywhere_take_part():
    tokens = made_up_tokens(problems=9, length=(3, 5), frames=2)
    tokens.comparable[3, :4] = False
    fewer = tokens.sel(token=tokens["rollout"].values >= 4)
    triple, _ = found_in(tokens)
    assert triple.attrs["n_rollouts"] == 32
    np.testing.assert_allclose(triple.estimate, found_in(fewer)[0].estimate)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ({"frames": 1}, "2 frames are needed"),
        ({"families": 0}, "no placebo family"),
    ],
)
def test_what_is_missing_is_said(shape, words):
    triple, _ = found_in(made_up_tokens(problems=9, length=(3, 5), **shape))
    assert "p" not in triple.attrs
    assert triple.attrs["statement"].startswith("not estimable")
    assert words in triple.attrs["statement"]
    assert np.isnan(triple.estimate.sel(statistic="lambda", term="difference"))


def test_no_shift_at_all_has_no_lambda():
    tokens = made_up_tokens(problems=9, length=(3, 5), frames=6)
    tokens.logp[:] = tokens.logp[0].values
    triple, _ = found_in(tokens)
    assert "no contrast in any frame" in triple.attrs["statement"]
    assert np.isnan(triple.estimate).all()
    assert (triple.method == Method.NONE_UNDEFINED).all()


def test_a_verdict_that_is_the_same_in_all_frames_is_first_and_has_no_finite_lambda():
    tokens = made_up_tokens(problems=9, length=(3, 5), frames=2)
    base = tokens.logp[0].values
    for at in np.flatnonzero(tokens.family.values == "verdict"):
        tokens.logp[at] = base + (0.5 if tokens.level.values[at] == "pos" else -0.5)
    triple, _ = found_in(tokens)
    assert triple.attrs["rank"] == 1
    assert np.isnan(triple.estimate.sel(statistic="lambda", term="verdict"))


def test_one_problem_gives_a_rank_and_no_interval():
    triple, _ = found_in(made_up_tokens(problems=1, frames=6))
    assert "first_share" not in triple.attrs
    assert "too few problem texts" in triple.attrs["statement"]
    assert (triple.method == Method.NONE_FEW_PROBLEMS).all()
    assert np.isnan(triple.interval).all()


def test_below_six_frames_the_statement_says_for_these_wordings():
    triple, _ = found_in(made_up_tokens(problems=12, length=(3, 5), frames=5))
    assert "5 frames: for these wordings" in triple.attrs["statement"]
    # t interval on problem values, as for everything that draws problems alone
    assert triple.method.sel(statistic="lambda", term="verdict") == Method.T_INTERVAL


def test_with_two_word_pairs_a_family_the_items_are_sentences_times_pairs():
    plain = made_up_tokens(problems=9, length=(3, 9), frames=6, scenario="signal")
    # The same contrasts, said to come from three sentences with two word pairs each.
    frame = plain["frame"].values.astype(object)
    wording = plain["wording"].values.astype(object)
    for place, name in enumerate(frame):
        if plain["level"].values[place] in ("pos", "neg"):
            number = int(str(name)[1:])
            frame[place], wording[place] = f"f{number // 2}", f"w{number % 2}"
    crossed = plain.assign_coords(
        frame=("condition", frame.astype(str)), wording=("condition", wording.astype(str))
    )
    triple, family = found_in(crossed)
    expected, _ = found_in(plain)
    np.testing.assert_allclose(
        triple.estimate.sel(statistic="lambda"), expected.estimate.sel(statistic="lambda")
    )
    assert len(json.loads(family.attrs["frames"])) == 6
    assert "one word pair" not in family.attrs["statement"]
    assert "one word pair in every sentence" in expected.attrs["statement"]
