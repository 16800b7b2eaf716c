import numpy as np
import pytest

from tests.stats.builders import made_up_tokens
from tokensense.errors import SchemaError, StatisticsError
from tokensense.stats.pairs import pairs_of, terms_of
from tokensense.stats.sample import read_sample


@pytest.fixture
def tokens():
    return made_up_tokens(problems=4, group=3, length=(2, 6), generators=tuple("abcd"))


def test_layout(tokens):
    sample = read_sample(tokens)
    np.testing.assert_array_equal(sample.length, tokens.length)
    np.testing.assert_array_equal(sample.problem, np.repeat(np.arange(4), 3))
    assert sample.generator.tolist() == ["a", "b", "c", "d"] * 3
    assert sample.clusters == 4
    assert sample.labels["condition"][sample.base] == "base"
    np.testing.assert_array_equal(sample.surprisal, -tokens.logp.values[0].astype(float))
    assert sample.attrs["off_policy"] == 1


def test_shift_is_the_condition_minus_base(tokens):
    sample = read_sample(tokens)
    expected = tokens.logp.values[3].astype(float) - tokens.logp.values[0].astype(float)
    np.testing.assert_array_equal(sample.shift(3), expected)
    assert (sample.shift(sample.base) == 0).all()


def test_order_of_tokens_is_undone_and_remembered(tokens):
    order = np.random.default_rng(0).permutation(tokens.sizes["token"])
    mixed = read_sample(tokens.isel(token=order))
    plain = read_sample(tokens)
    np.testing.assert_array_equal(mixed.length, plain.length)
    np.testing.assert_array_equal(mixed.problem, plain.problem)
    np.testing.assert_array_equal(np.sort(mixed.order), np.arange(order.size))
    # token i of the sample is token order[i] of the Dataset that came
    np.testing.assert_array_equal(
        tokens.isel(token=order).token_id.values[mixed.order],
        tokens.token_id.values[order[mixed.order]],
    )
    np.testing.assert_array_equal(mixed.logp, tokens.isel(token=order).logp.values[:, mixed.order])


def test_rollouts_may_be_missing_as_a_whole(tokens):
    part = read_sample(tokens.isel(token=tokens.generator.values != "b"))
    whole = read_sample(tokens)
    assert "b" not in part.generator
    np.testing.assert_array_equal(part.length, whole.length[whole.generator != "b"])
    assert part.comparable.shape[1] == part.length.size


def test_rollouts_of_no_tokens_are_left_out_and_counted(tokens):
    longer = tokens.isel(rollout=[*range(12), 0])
    longer.length.values[12] = 0
    sample = read_sample(longer)
    assert sample.length.size == 12
    assert sample.attrs["rollouts_without_tokens"] == 1
    assert read_sample(tokens).attrs["rollouts_without_tokens"] == 0


def test_a_part_of_a_rollout_is_refused(tokens):
    with pytest.raises(SchemaError, match="all tokens of a rollout or none; rollout 0 has"):
        read_sample(tokens.isel(token=slice(1, None)))


def test_equal_texts_are_one_cluster(tokens):
    together = tokens.assign_coords(cluster=("token", tokens.problem.values // 2 + 7))
    sample = read_sample(together)
    assert sample.clusters == 2
    np.testing.assert_array_equal(sample.cluster, sample.problem // 2)


@pytest.mark.parametrize("name", ["logp", "comparable", "length", "tone", "kind", "reward"])
def test_a_missing_part_is_named(tokens, name):
    with pytest.raises(SchemaError, match=name):
        read_sample(tokens.drop_vars(name))


def test_base_must_be_there_and_names_unique(tokens):
    with pytest.raises(SchemaError, match="'base' among them"):
        read_sample(tokens.isel(condition=slice(1, None)))
    double = tokens.isel(condition=[0, 1, 1])
    with pytest.raises(SchemaError, match="1 of them more than once"):
        read_sample(double)


def test_no_tokens(tokens):
    with pytest.raises(StatisticsError, match="at least one response token"):
        read_sample(tokens.isel(token=slice(0, 0)))


def test_rollout_index_out_of_range(tokens):
    wrong = tokens.assign_coords(rollout=("token", tokens.rollout.values + 1))
    with pytest.raises(SchemaError, match="indices from 0 to 11"):
        read_sample(wrong)


def test_two_rewards_in_one_rollout(tokens):
    reward = tokens.reward.values.copy()
    reward[0] = 5
    with pytest.raises(SchemaError, match=r"`reward` needs one value .* rollout 0 has several"):
        read_sample(tokens.assign_coords(reward=("token", reward)))


def test_unknown_rewards_are_one_value(tokens):
    unknown = tokens.assign_coords(reward=("token", np.full(tokens.sizes["token"], np.nan)))
    assert np.isnan(read_sample(unknown).reward).all()


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_infinite_rewards_are_refused(tokens, value):
    reward = np.where(tokens.rollout.values == 1, value, tokens.reward.values)
    with pytest.raises(
        SchemaError, match=rf"`reward` needs finite numbers.* rollout 1 has {value}"
    ):
        read_sample(tokens.assign_coords(reward=("token", reward)))


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_an_unscored_token_of_a_comparable_rollout_is_refused(tokens, value):
    tokens.logp.values[2, 0] = value
    with pytest.raises(StatisticsError, match=r"condition 'verdict.f0.neg', rollout 0 has"):
        read_sample(tokens)


def test_an_unscored_token_of_an_incomparable_rollout_is_left_alone(tokens):
    tokens.logp.values[2, : int(tokens.length[0])] = np.nan
    tokens.comparable.values[2, 0] = False
    sample = read_sample(tokens)
    (pair,) = (p for p in pairs_of(sample) if p.negative == 2)
    assert sample.usable(pair).tolist() == [False] + [True] * 11


def test_base_that_cannot_be_used_takes_every_condition_with_it(tokens):
    tokens.comparable.values[0, 4] = False
    assert not read_sample(tokens).comparable[:, 4].any()


def test_missing_probabilities_of_base_are_refused(tokens):
    tokens.p_square_sum.values[0, 0] = np.nan
    with pytest.raises(StatisticsError, match="`p_square_sum` needs finite"):
        read_sample(tokens)


def relabel(tokens, **columns):
    return tokens.assign_coords({k: ("condition", v) for k, v in columns.items()})


def test_pairs_hold_the_two_levels_of_one_frame(tokens):
    sample = read_sample(tokens)
    pairs = pairs_of(sample)
    assert len(pairs) == 8  # verdict and three placebos in two frames
    for pair in pairs:
        positive, negative = sample.labels["condition"][[pair.positive, pair.negative]]
        assert positive == f"{pair.family}.{pair.frame}.pos"
        assert negative == f"{pair.family}.{pair.frame}.neg"
        assert pair.is_placebo == (pair.family != "verdict")
    assert len({pair.name for pair in pairs}) == 8


def test_a_level_without_counterpart_is_refused(tokens):
    with pytest.raises(SchemaError, match="both levels in the same tones"):
        pairs_of(read_sample(tokens.isel(condition=[0, 1])))


def test_equal_conditions_are_refused(tokens):
    frame = tokens.frame.values.copy()
    frame[:] = "f0"
    with pytest.raises(SchemaError, match="own wording"):
        pairs_of(read_sample(relabel(tokens, frame=frame)))


def test_an_unknown_level_is_refused(tokens):
    level = tokens.level.values.astype("<U9")
    level[1] = "neither"
    with pytest.raises(SchemaError, match="neither"):
        pairs_of(read_sample(relabel(tokens, level=level)))


def test_tones_are_kept_apart_or_together(tokens):
    # The two verdict frames become one frame in two tones: outcome x tone.
    part = tokens.isel(condition=[0, 1, 2, 3, 4])
    frame = np.array(["none", "f0", "f0", "f0", "f0"])
    tone = np.array(["none", "praise", "praise", "blame", "blame"])
    pairs = pairs_of(read_sample(relabel(part, frame=frame, tone=tone)))
    assert [pair.tone for pair in pairs] == ["blame", "praise"]
    assert [(pair.positive, pair.negative) for pair in pairs] == [(3, 4), (1, 2)]
    # The published wording praises with one level and blames with the other.
    part = tokens.isel(condition=[0, 1, 2])
    (pair,) = pairs_of(read_sample(relabel(part, tone=np.array(["none", "praise", "blame"]))))
    assert pair.tone == "praise-blame"


def test_unequal_tones_are_refused(tokens):
    part = tokens.isel(condition=[0, 1, 2, 3, 4])
    frame = np.array(["none", "f0", "f0", "f0", "f0"])
    tone = np.array(["none", "praise", "praise", "blame", "none"])
    with pytest.raises(SchemaError, match="in the same tones"):
        pairs_of(read_sample(relabel(part, frame=frame, tone=tone)))


def test_terms_of_the_triple(tokens):
    sample = read_sample(tokens)
    pairs = pairs_of(sample)
    terms = terms_of(sample, pairs)
    assert [pairs[i].family for i in terms.verdict] == ["verdict", "verdict"]
    assert list(terms.placebo) == ["placebo-0", "placebo-1", "placebo-2"]
    assert all(len(members) == 2 for members in terms.placebo.values())
    assert terms.statements == ()


def test_toned_verdicts_stay_out_of_the_triple(tokens):
    tone = tokens.tone.values.astype("<U6")
    tone[1], tone[2] = "praise", "blame"
    sample = read_sample(relabel(tokens, tone=tone))
    pairs = pairs_of(sample)
    terms = terms_of(sample, pairs)
    assert [pairs[i].frame for i in terms.verdict] == ["f1"]
    # Placebos of frame f0 have no verdict beside them.
    assert [len(members) for members in terms.placebo.values()] == [1, 1, 1]
    assert "only verdict or only placebo" in terms.statements[0]


def test_without_a_shared_frame_all_are_compared(tokens):
    frame = tokens.frame.values.astype("<U4")
    frame[1:5] = ["g0", "g0", "g1", "g1"]
    sample = read_sample(relabel(tokens, frame=frame))
    terms = terms_of(sample, pairs_of(sample))
    assert len(terms.verdict) == 2
    assert [len(members) for members in terms.placebo.values()] == [2, 2, 2]
    assert "share no frame" in terms.statements[0]


def test_without_placebo_the_verdict_stands_alone(tokens):
    sample = read_sample(tokens.isel(condition=slice(0, 5)))
    terms = terms_of(sample, pairs_of(sample))
    assert terms.placebo == {}
    assert "run the probe `placebo`" in terms.statements[0]


def test_without_verdict_there_is_no_triple(tokens):
    sample = read_sample(tokens.isel(condition=[0, *range(5, 17)]))
    with pytest.raises(StatisticsError, match="Run the probe `opposed` first"):
        terms_of(sample, pairs_of(sample))


def test_pairs_that_no_rollout_can_use_are_named(tokens):
    tokens.comparable.values[1] = False
    sample = read_sample(tokens)
    pairs = pairs_of(sample)
    terms = terms_of(sample, pairs)
    assert [pairs[i].frame for i in terms.verdict] == ["f1"]
    assert "verdict/f0" in terms.statements[0]
