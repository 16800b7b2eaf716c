import json

import numpy as np
import pytest
import xarray as xr

from tests.stats.builders import made_up_tokens, with_steps
from tokensense.errors import StatisticsError
from tokensense.stats.describe import describe, token_states
from tokensense.stats.floors import wording_floor
from tokensense.stats.resampling import Method
from tokensense.stats.rows import SECTIONS, notes, table
from tokensense.stats.shifts import contrast, onehot_distance

NAMES = {
    "triple",
    "triple_by_rollout",
    "family",
    "family_by_rollout",
    "kind",
    "balance",
    "kind_permuted",
    "floor",
    "neutral",
    "informative",
    "controls",
    "character",
    "read",
    "read_by_family",
    "decision",
    "polarity",
    "left_out",
    "concentration",
    "agreement",
    "frame_agreement",
}
PLAIN = {"balance", "decision", "kind_permuted", "left_out"}  # without intervals made here


@pytest.fixture(scope="module")
def tokens():
    return made_up_tokens(problems=30, length=(4, 12), scenario="signal")


@pytest.fixture(scope="module")
def result(tokens):
    return describe(tokens, seed=1, resamples=300)


def test_what_there_is(result):
    assert set(result) == NAMES
    dims = {name: found["estimate"].dims for name, found in result.items() if name not in PLAIN}
    assert dims["triple"] == ("statistic", "term")
    assert dims["family"] == ("statistic", "family")
    assert dims["kind"] == ("scale", "measure", "kind", "term")
    assert dims["informative"] == ("statistic", "term")
    assert dims["controls"] == ("statistic", "score")
    assert dims["neutral"] == ("statistic", "condition")
    assert dims["floor"] == ("statistic",)
    assert result["triple"].term.values.tolist() == ["verdict", "placebo", "difference"]


def test_every_result_has_interval_method_counts_and_provenance(result):
    for name, found in result.items():
        assert found.attrs["seed"] == 1, name
        assert found.attrs["off_policy"] == 1, name
        assert found.attrs["scored_by"] == "made up", name
        assert "positive: likelier" in found.attrs["sign"], name
        assert json.loads(found.attrs["placebo_families"]) == [
            "placebo-0",
            "placebo-1",
            "placebo-2",
        ]
        if name in PLAIN:
            continue
        assert {"estimate", "interval", "error", "method", "n_clusters", "lost"} <= set(found)
        assert found.bound.values.tolist() == ["low", "high"], name
        assert "unit" in found.coords, name
        assert "n_tokens" in found or "n_tokens" in found.attrs, name
        assert "n_rollouts" in found or "n_rollouts" in found.attrs, name
        interval = found.interval.values
        known = np.isin(found.method, [Method.BOOTSTRAP, Method.T_INTERVAL])
        assert (np.isfinite(interval).all(-1) == known).all(), name
        assert (interval[known][:, 0] <= interval[known][:, 1]).all(), name


def test_few_wordings_are_said(result):
    statements = json.loads(result["triple"].attrs["statements"])
    assert statements == ["2 verdict pairs: results hold for these wordings, not for others"]


def test_six_wordings_need_no_warning():
    tokens = made_up_tokens(problems=3, length=(2, 4), frames=6, neutral=False)
    found = describe(tokens, resamples=100)
    assert json.loads(found["triple"].attrs["statements"]) == []


def test_scores_in_a_short_format_are_a_description():
    tokens = made_up_tokens(problems=3, length=(2, 4), frames=6, neutral=False)
    for dtype, said in (("float32", []), ("bfloat16", ["scored in bfloat16, which moves a token"])):
        result = describe(tokens.assign_attrs(dtype=dtype), resamples=100)
        found = json.loads(result["triple"].attrs["statements"])
        assert [text[: len("scored in bfloat16, which moves a token")] for text in found] == said


def test_incomparable_rollouts_are_counted():
    tokens = made_up_tokens(problems=10, length=(2, 4))
    tokens.comparable.values[1, [0, 3]] = False
    attrs = describe(tokens, resamples=100)["triple"].attrs
    assert json.loads(attrs["left_out"]) == {"opposed/verdict/f0/w0/user_end": 2}
    assert "up to 2 of 40, in 1 of 8 pairs" in attrs["statements"]


def test_a_rollout_left_out_on_one_side_is_left_out_on_both():
    tokens = made_up_tokens(problems=30, group=2, seed=1)
    loud = tokens["rollout"].values < 20
    shift = tokens["logp"] - tokens["logp"].sel(condition="base")
    tokens["logp"] = tokens["logp"].sel(condition="base") + shift * np.where(loud, 5.0, 1.0)
    verdict = (tokens["family"].values == "verdict")[:, None]
    tokens["comparable"] = tokens["comparable"] & ~(verdict & (np.arange(60) < 20))
    found = describe(tokens, resamples=200)["triple"].sel(statistic="mean_absolute_shift")
    # The loud rollouts have five times the shift: on one side alone they would make the difference.
    kept = tokens.isel(token=np.flatnonzero(~loud))
    alone = describe(kept, resamples=200)["triple"].sel(statistic="mean_absolute_shift")
    np.testing.assert_allclose(found["estimate"], alone["estimate"])
    assert abs(found["estimate"].sel(term="difference").item()) < 0.01


def test_no_rollout_under_all_pairs_is_an_error_with_advice():
    tokens = made_up_tokens(problems=10, group=2)
    verdict = (tokens["family"].values == "verdict")[:, None]
    first = np.arange(20) < 10
    tokens["comparable"] = tokens["comparable"] & np.where(verdict, first, ~first)
    tokens["comparable"].loc[{"condition": "base"}] = True
    with pytest.raises(StatisticsError, match="compared under all its pairs"):
        describe(tokens, resamples=200)


def test_the_same_seed_gives_the_same_numbers(tokens, result):
    again = describe(tokens, seed=1, resamples=300)
    other = describe(tokens, seed=2, resamples=300)
    for name in NAMES:
        xr.testing.assert_identical(result[name], again[name])
    assert not result["triple"].interval.equals(other["triple"].interval)
    np.testing.assert_array_equal(result["triple"].estimate, other["triple"].estimate)


def test_order_of_tokens_rollouts_and_conditions_does_not_matter():
    tokens = made_up_tokens(problems=12, group=2, length=(3, 6))
    rng = np.random.default_rng(0)
    moved = tokens.isel(
        token=rng.permutation(tokens.sizes["token"]),
        condition=rng.permutation(tokens.sizes["condition"]),
    )
    # Rollouts renumbered as well.
    number = rng.permutation(tokens.sizes["rollout"])
    moved = moved.isel(rollout=np.argsort(number))
    moved = moved.assign_coords(rollout=("token", number[moved.rollout.values]))
    one, other = describe(tokens, resamples=100), describe(moved, resamples=100)
    for name in ("triple", "kind", "floor", "informative", "controls"):
        np.testing.assert_allclose(
            other[name].interval, one[name].interval, rtol=1e-6, atol=1e-9, err_msg=name
        )
    # The position of a token in its rollout is its order, so only the rest of the balance stays.
    stays = ["log_surprisal", "onehot_distance"]
    np.testing.assert_allclose(
        other["balance"].difference.sel(covariate=stays),
        one["balance"].difference.sel(covariate=stays),
        atol=1e-9,
    )


def test_swapping_levels_mirrors_what_has_a_sign(tokens, result):
    level = tokens.level.values
    swapped = np.where(level == "pos", "neg", np.where(level == "neg", "pos", level))
    other = describe(tokens.assign_coords(level=("condition", swapped)), seed=1, resamples=300)
    for name in result["triple"].statistic.values:
        sign = -1 if name == "mean_contrast" else 1
        np.testing.assert_allclose(
            other["triple"].estimate.sel(statistic=name),
            sign * result["triple"].estimate.sel(statistic=name),
            atol=1e-9,
        )
    before = result["informative"].estimate.sel(term=["verdict", "placebo"])
    after = other["informative"].estimate.sel(term=["verdict", "placebo"])
    np.testing.assert_allclose(after, 1 - before, atol=1e-12)


def test_five_percent_of_single_placebo_contrasts_exceed_the_floor(result):
    at = result["floor"].estimate.sel(statistic="placebo_above_floor")
    assert at.item() == pytest.approx(0.05, abs=0.01)
    assert result["floor"].sizes["bin"] == 10
    assert result["floor"].floor.attrs["units"] == "nats"


def test_without_three_placebo_families_the_floor_is_missing_and_said():
    found = describe(made_up_tokens(problems=25, length=(2, 5), families=2), resamples=100)
    assert "no wording floor" in found["triple"].attrs["statements"]
    assert (found["floor"].method == Method.NONE_UNDEFINED).all()
    assert np.isnan(found["floor"].floor).all()


def test_only_verdicts_still_give_a_description():
    tokens = made_up_tokens(problems=25, length=(2, 5)).isel(condition=slice(0, 5))
    found = describe(tokens, resamples=100)
    assert "run the probe `placebo`" in found["triple"].attrs["statements"]
    assert np.isfinite(found["triple"].estimate.sel(term="verdict", statistic="same_direction"))
    assert "neutral" not in found
    assert table(found)


@pytest.mark.parametrize("problems", [1, 7])
def test_few_problems_give_no_interval_anywhere(problems):
    found = describe(made_up_tokens(problems=problems, length=(3, 6)), resamples=100)
    for name, one in found.items():
        if name not in PLAIN:
            assert np.isnan(one.interval).all(), name
            assert (one.method >= Method.NONE_FEW_PROBLEMS).all(), name


def test_constant_data_are_stated_not_crashed_on():
    tokens = made_up_tokens(problems=25, length=(3, 6))
    tokens.logp.values[:] = -0.5
    found = describe(tokens, resamples=100)
    triple = found["triple"]
    assert (triple.method.sel(statistic="correlation") == Method.NONE_UNDEFINED).all()
    assert (triple.method.sel(statistic="same_direction") == Method.NONE_UNDEFINED).all()
    assert (triple.method.sel(statistic="mean_shift") == Method.NONE_NO_VARIATION).all()
    assert found["informative"].estimate.sel(statistic="auroc_sum_balanced", term="verdict") == 0.5


def constant(tokens):
    tokens.logp.values[:] = -0.5
    return tokens


def certain(tokens):
    tokens.logp.values[:] = 0.0
    tokens.p_square_sum.values[:] = 1.0
    return tokens


def unmoved(tokens):
    tokens.logp.values[:] = tokens.logp.values[0]
    return tokens


def moved_as_one(tokens):
    tokens.logp.values[:] = -9.0 + 0.1 * np.arange(tokens.sizes["condition"])[:, None]
    return tokens


def of_one_kind(tokens):
    return tokens.assign_coords(kind=("token", np.full(tokens.sizes["token"], "digit")))


def with_an_empty_kind(tokens):
    kind = np.where(tokens.kind.values == "digit", "", tokens.kind.values)
    return tokens.assign_coords(kind=("token", kind))


def all_right(tokens):
    return tokens.assign_coords(reward=("token", np.ones(tokens.sizes["token"])))


def of_one_text(tokens):
    return tokens.assign_coords(cluster=("token", np.zeros(tokens.sizes["token"], int)))


def unknown_entropy(tokens):
    tokens.entropy.values[:] = np.nan
    return tokens


HOSTILE = (
    constant,
    certain,
    unmoved,
    moved_as_one,
    of_one_kind,
    with_an_empty_kind,
    all_right,
    of_one_text,
    unknown_entropy,
)


@pytest.mark.parametrize(
    ("spoiled", "problems"),
    [*((one, 9) for one in HOSTILE), (constant, 24), (of_one_kind, 1), (certain, 1)],
    ids=lambda one: getattr(one, "__name__", one),
)
def test_hostile_data_give_statements_and_no_silent_number(spoiled, problems):
    tokens = spoiled(with_steps(made_up_tokens(problems=problems, length=(1, 6))))
    gaps = np.full(tokens.sizes["token"], -np.inf)
    gaps[::2] = np.nan
    found = describe(tokens, scores={"gaps": gaps}, resamples=100)
    for name, one in found.items():
        if name in PLAIN:
            continue
        low, high = one.interval.sel(bound="low"), one.interval.sel(bound="high")
        assert not np.isinf(one.estimate).any(), name
        assert not np.isinf(one.interval).any(), name
        none = one.method >= Method.NONE_FEW_PROBLEMS
        assert (np.isnan(low) == none).all(), name
        assert (np.isnan(high) == none).all(), name
        assert ((low < high) | none).all(), name
        assert not (np.isnan(one.estimate) & ~none).any(), name
    assert found["decision"].statement.str.len().min() > 0
    assert len(table(found)) > 0
    assert notes(found)


def test_rewards_unknown_leave_out_the_endpoint():
    tokens = made_up_tokens(problems=10, length=(2, 4))
    unknown = tokens.assign_coords(reward=("token", np.full(tokens.sizes["token"], np.nan)))
    assert set(describe(unknown, resamples=100)) == NAMES - {"informative", "controls"}


def test_no_verdict_is_an_error_with_advice():
    tokens = made_up_tokens(problems=5).isel(condition=[0])
    with pytest.raises(StatisticsError, match="Run the probe `opposed` first"):
        describe(tokens, resamples=100)


def test_table_rows_hold_estimate_interval_unit_and_n(result):
    rows = table(result)
    more_needed = {"localization", "beyond", "step_choice", "outcome_tone"}
    assert {row.section for row in rows} == set(SECTIONS) - more_needed
    (row,) = (r for r in rows if (r.section, r.name) == ("triple", "same_direction"))
    at = result["triple"].sel(statistic="same_direction", term="verdict")
    low, high = at.interval.values
    assert row.value == f"{at.estimate.item():.3f} [{low:.3f}, {high:.3f}]"
    assert row.placebo
    assert row.difference
    assert row.unit == "1"
    assert row.n == f"30 clusters, 120 rollouts, {at.n_tokens.item():.0f} tokens"
    (row,) = (r for r in rows if (r.section, r.name) == ("triple", "mean_absolute_shift"))
    assert row.unit == "nats"
    (row,) = (r for r in rows if (r.section, r.name) == ("controls", "auroc_plain generator"))
    assert row.placebo == row.difference == ""
    assert table(result, sections=("nothing",)) == []


def test_the_character_is_one_line_of_the_table_and_one_note(result):
    (row,) = table(result, sections=("character",))
    assert (row.name, row.value) == ("verdicts", result["character"].attrs["word"])
    assert row.n.startswith("30 clusters, 120 rollouts")
    (note,) = (n for n in notes(result) if n.startswith("what the verdicts do: "))
    assert note.endswith(result["character"].attrs["statement"])


def test_the_decision_is_the_first_lines_of_the_table_and_in_the_notes(result):
    rows = table(result, sections=("decision",))
    assert [row.name for row in rows] == ["word", "read", "informative", "beyond", "drives"]
    decision = result["decision"]
    assert rows[0].value == decision.attrs["word"] == "inconclusive"
    assert "smallest reachable 0.25" in rows[1].value
    assert rows[1].n == "30 clusters, 120 rollouts, 972 tokens"
    assert rows[2].value.startswith("not estimable: ")
    assert rows[3].value == "not estimable: no step labels: the Dataset has no label, wrong_step"
    assert "needs the gradient" in rows[4].value
    said = notes(result)
    assert any(note.startswith("decision: inconclusive: the verdict is read") for note in said)
    assert any("Holm over 1 estimable primaries, scored by made up" in note for note in said)


def test_step_labels_bring_the_third_endpoint_and_the_choice_of_steps(tokens):
    size = tokens.sizes["token"]
    found = describe(
        with_steps(tokens, planted="verdict"), scores={"weight": np.zeros(size)}, resamples=100
    )
    assert {"beyond", "step_choice"} <= set(found)
    assert found["step_choice"].estimate.sel(statistic="auroc", score="weight") == 0.5
    (row,) = (r for r in table(found) if (r.section, r.name) == ("beyond", "increase"))
    assert row.difference
    assert "n_tokens" in found["beyond"].attrs
    assert "rollouts" in row.n


def test_localization_comes_with_known_wrong_tokens_and_further_scores(tokens):
    owner = tokens["rollout"].values
    wrong = (np.diff(owner, prepend=-1) > 0) & (tokens["reward"].values == 0)
    known = tokens.assign_coords(is_wrong_token=("token", wrong))
    scores = {"weight of cscr": np.ones(owner.size)}
    found = describe(known, scores=scores, seed=1, resamples=100)
    located = found["localization"]
    assert located["score"].values[-1] == "weight of cscr"
    assert located.attrs["seed"] == 1
    assert json.loads(located.attrs["placebo_families"])
    names = [row.name for row in table(found, sections=("localization",))]
    assert names[0] == "auroc sensitivity"
    assert "hit_at_1 weight of cscr" in names
    assert any(note.startswith("localization: ") for note in notes(found))


def test_table_says_why_there_is_no_interval():
    tokens = made_up_tokens(problems=3, length=(3, 6), families=1)
    rows = {row.name: row for row in table(describe(tokens, resamples=100), sections=("triple",))}
    assert rows["same_direction"].value.endswith("[none_few_problems]")
    assert rows["same_direction_above_floor"].value == "not estimable"


def test_states_of_tokens_in_the_order_they_came(tokens):
    order = np.random.default_rng(0).permutation(tokens.sizes["token"])
    found, mixed = token_states(tokens), token_states(tokens.isel(token=order))
    np.testing.assert_array_equal(mixed.state, found.state[order])
    base = tokens.logp.values[0].astype(float)
    d = {}
    for family in np.unique(tokens.family.values[1:17]):
        d[family] = [
            contrast(
                *(
                    tokens.logp.sel(condition=f"{family}.{f}.{s}").values - base
                    for s in ("pos", "neg")
                )
            )
            for f in ("f0", "f1")
        ]
    distance = onehot_distance(base, tokens.p_square_sum.values[0].astype(float))
    placebo = [f for f in d if f != "verdict"]
    floor = wording_floor(
        np.concatenate([d[f] for f in placebo]), distance, families=np.repeat(placebo, 2).tolist()
    ).at(distance)
    mean = np.mean(d["verdict"], axis=0)
    np.testing.assert_allclose(found.contrast, mean, atol=1e-12)
    np.testing.assert_allclose(found.floor, floor, atol=1e-12)
    assert found.attrs["wordings"] == 2
    for side, level in (("positive", "pos"), ("negative", "neg")):
        logp = [tokens.logp.sel(condition=f"verdict.{f}.{level}").values for f in ("f0", "f1")]
        np.testing.assert_allclose(found[side], np.mean(logp, axis=0) - base, atol=1e-6)
    np.testing.assert_array_equal(found.state, np.where(np.abs(mean) < floor, 1, 0))
    assert found.state.attrs["flag_meanings"] == "resolved unresolved not_known"


def test_tokens_that_cannot_be_compared_have_no_state(tokens):
    part = tokens.copy(deep=True)
    part.comparable.values[1, 0] = False
    found = token_states(part)
    first = part.rollout.values == 0
    assert (found.state.values[first] == 2).all()
    assert (found.state.values[~first] < 2).all()
