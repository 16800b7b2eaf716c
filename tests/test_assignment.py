"""From a store to credit: which evidence is read, who is left out, what is kept."""

import json

import numpy as np
import pytest
import xarray as xr
from typer.testing import CliRunner

import tokensense as ts
from tests.probes.tiny import tiny_policy
from tests.reference import credit as slow
from tests.stats.builders import made_up_tokens
from tests.test_study import FIELDS, write_traces
from tokensense.assignment import compare_rules, credit_of
from tokensense.cli import app
from tokensense.credit import CATALOGUE
from tokensense.credit.base import adjusted
from tokensense.errors import SchemaError, StatisticsError, StoreError

RULES = ["uniform", *(name for name in CATALOGUE if name.startswith("cscr"))]


def rollouts_of(tokens, *, reward=None):
    """The node `/rollouts` of made-up tokens, as far as credit reads it."""
    first = np.unique(tokens["rollout"].values, return_index=True)[1]
    own = tokens["reward"].values[first] if reward is None else np.asarray(reward, np.float64)
    return xr.Dataset(
        {
            "reward": ("rollout", own.astype(np.float32)),
            "problem_of": ("rollout", tokens["problem"].values[first].astype(np.int32)),
            "length": ("rollout", tokens["length"].values),
        }
    )


@pytest.fixture(scope="module")
def tokens():
    return made_up_tokens(problems=4, group=3, length=(5, 9), frames=2, families=2)


def shift(tokens, family, level):
    """Mean over frames of the shift under one level, by plain selection."""
    chosen = (tokens["family"] == family) & (tokens["level"] == level)
    logp = tokens["logp"].values.astype(np.float64)
    return (logp[chosen.values] - logp[0]).mean(axis=0)


def test_cscr_reads_the_mean_over_the_frames_of_the_verdict(tokens):
    rollouts = rollouts_of(tokens)
    found = credit_of(tokens, rollouts, rules=["cscr", "cscr_placebo"])
    own, placebo = (
        np.maximum(abs(shift(tokens, family, "pos")), abs(shift(tokens, family, "neg"))).tolist()
        for family in ("verdict", "placebo-0")
    )
    length = tokens["length"].values.tolist()
    weights = slow.cscr(own, length, gamma=0.2, threshold=0.05, tau=1.0)
    np.testing.assert_allclose(found["weight"].sel(rule="cscr"), weights, rtol=1e-12)
    dealt = slow.dealt(weights, own, placebo, length)
    np.testing.assert_allclose(found["weight"].sel(rule="cscr_placebo"), dealt, rtol=1e-12)
    advantage = slow.advantage(
        rollouts["reward"].values.tolist(), rollouts["problem_of"].values.tolist(), "group_std",
        eps=1e-4, ddof=1,
    )  # fmt: skip
    expected = np.repeat(advantage, length)
    np.testing.assert_allclose(found["advantage"], expected, rtol=1e-12)
    np.testing.assert_allclose(found["credit"].sel(rule="cscr"), expected * weights, rtol=1e-12)
    said = json.loads(found["evidence"].sel(rule="cscr_placebo").item())
    assert said["z_pos"].count("opposed/verdict/") == 2
    assert "placebo-1" not in said["placebo_pos"]


def test_the_dataset_says_what_it_holds(tokens):
    found = credit_of(tokens, rollouts_of(tokens), rules=RULES)
    assert found["credit"].dims == found["weight"].dims == ("rule", "token")
    assert found["rule"].values.tolist() == RULES
    assert {"kind", "problem", "reward", "token_id"} <= set(found.coords)
    assert all("units" in found[name].attrs for name in found.data_vars)
    assert found.attrs["advantage"] == "group_std"
    assert found.attrs["pooled"] is False
    assert json.loads(found["settings"].sel(rule="cscr_shuffled").item())["seed"] == 0
    np.testing.assert_array_equal(found["weight"].sel(rule="uniform"), 1)
    np.testing.assert_array_equal(found["tokens"], tokens.sizes["token"])
    # All controls have the weights of CSCR, and so its numbers.
    for name in ("least", "largest", "moved", "effective"):
        np.testing.assert_allclose(found[name][2:], found[name][1].item(), rtol=1e-12)
    assert found["with_surprisal"].sel(rule="cscr_surprisal") < -0.2


def test_undecided_and_incomparable_rollouts_are_left_out_and_counted(tokens):
    tokens = tokens.copy(deep=True)
    reward = [1, 0, np.nan, 1, 1, 1, 0, 1, 0, 1, 0, 0]
    tokens["comparable"][1, 4] = False  # a verdict's condition
    tokens["logp"][1, tokens["rollout"].values == 4] = np.nan
    found = credit_of(tokens, rollouts_of(tokens, reward=reward), rules=["uniform", "cscr"])
    owner = tokens["rollout"].values
    for name, gone in (("uniform", [2]), ("cscr", [2, 4])):
        for values in ("credit", "weight"):
            missing = np.isnan(found[values].sel(rule=name).values)
            np.testing.assert_array_equal(missing, np.isin(owner, gone))
    assert found["undecided"].values.tolist() == [1, 1]
    assert found["not_comparable"].values.tolist() == [0, 1]
    # The advantage of the others of its problem is that of two: +- 1/2 over (root 1/2 + eps).
    assert found["advantage"].values[owner == 0][0] == pytest.approx(0.5 / (0.5**0.5 + 1e-4))
    # A problem whose rewards are equal says nothing, to the last bit.
    assert (found["credit"].sel(rule="uniform").values[np.isin(owner, [3, 4, 5])] == 0).all()
    assert (found.attrs["groups"], found.attrs["groups_without_contrast"]) == (4, 1)


def test_a_store_of_one_rollout_a_problem_is_pooled_and_says_so():
    tokens = made_up_tokens(problems=4, group=1, length=(3, 5), frames=1, families=1)
    rollouts = rollouts_of(tokens, reward=[1, 0, 0, 0])
    found = credit_of(tokens, rollouts)
    assert found.attrs["pooled"] is True
    expected = np.repeat([0.75, -0.25, -0.25, -0.25], rollouts["length"].values)
    np.testing.assert_allclose(found["advantage"], expected, rtol=1e-12)
    asked = credit_of(tokens, rollouts, advantage="leave_one_out")
    assert asked.attrs["pooled"] is False
    assert (asked["credit"] == 0).all()


def test_rollouts_without_tokens_count_in_their_group():
    tokens = made_up_tokens(problems=2, group=2, length=(3, 4), frames=1, families=1)
    kept = tokens.isel(token=tokens["rollout"].values != 1)
    length = tokens["length"].values.copy()
    length[1] = 0
    kept["length"] = ("rollout", length)
    rollouts = rollouts_of(tokens, reward=[1, 0, 1, 0])
    rollouts["length"] = ("rollout", length)
    found = credit_of(kept, rollouts, rules=["cscr"])
    assert found["credit"].shape == (1, length.sum())
    assert (found["advantage"].values[: length[0]] > 0).all()
    assert found["not_comparable"].item() == 0


def test_missing_evidence_names_the_probe(tokens):
    without = {
        name: tokens.isel(condition=tokens["probe"].values != name)
        for name in ("opposed", "placebo")
    }
    rollouts = rollouts_of(tokens)
    assert (credit_of(without["opposed"], rollouts, rules=["uniform"])["weight"] == 1).all()
    with pytest.raises(StatisticsError, match="Run the probe `opposed` first"):
        credit_of(without["opposed"], rollouts, rules=["uniform", "cscr"])
    credit_of(without["placebo"], rollouts, rules=["cscr"])
    with pytest.raises(StatisticsError, match="Run the probe `sibling` first"):
        credit_of(tokens, rollouts, rules=["sibling"])
    with pytest.raises(StatisticsError, match=r"\['teacher'\].*To get it: another model's"):
        credit_of(tokens, rollouts, rules=["distilled_rl"])
    with pytest.raises(StatisticsError, match="Run the probe `placebo` first"):
        credit_of(without["placebo"], rollouts, rules=["cscr_placebo"])


def test_rules_are_compared_over_the_tokens_that_all_have(tokens):
    names = ["uniform", "cscr", "cscr_surprisal", "ar", "rlsd"]
    told = probed(tokens.copy(deep=True), placebo_0="answer")
    told["comparable"][told["probe"].values == "answer", 2] = False
    found = credit_of(told, rollouts_of(tokens), rules=names)
    compared = compare_rules(found)
    assert compared["score"].values.tolist() == [*names, "surprisal", "entropy", "position"]
    matrix = compared["correlation"].values
    assert np.isnan(matrix[0]).all()  # uniform has nothing to rank
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-12)
    alone = np.diag(matrix)[1:]
    np.testing.assert_allclose(alone[np.isfinite(alone)], 1, rtol=1e-12)
    # AR falls with surprisal alone, and so does CSCR dealt by surprisal, but for its ties.
    ar = compared["correlation"].sel(score="ar")
    silent = (found["advantage"] == 0).any().item()
    assert ar.sel(other="surprisal") == pytest.approx(-1, abs=1e-9) or silent
    assert ar.sel(other="cscr_surprisal") > 0.5
    named = {tuple(pair[:2]) for pair in json.loads(compared.attrs["twins"])}
    high = np.argwhere(np.triu(matrix > 0.95, k=1))
    scores = compared["score"].values
    assert named == {(scores[i], scores[j]) for i, j in high}
    np.testing.assert_allclose(compared["tokens"].sum(), 1, rtol=1e-12)
    np.testing.assert_allclose(compared["mass"].sum("kind"), 1, rtol=1e-12)
    kept = np.isfinite(found["credit"].sel(rule="rlsd").values)
    assert not kept.all()
    kinds = found["kind"].values[kept]
    size = abs(found["advantage"].values[kept])
    expected = [size[kinds == kind].sum() / size.sum() for kind in compared["kind"].values]
    np.testing.assert_allclose(compared["mass"].sel(rule="uniform"), expected, rtol=1e-12)


def probed(tokens, **probes):
    """The same scores, as if the placebo families had been other probes."""
    coords = {}
    for name in ("probe", "family"):
        values = tokens[name].values.astype("U20")
        for family, probe in probes.items():
            values[tokens["family"].values == family.replace("_", "-")] = probe
        coords[name] = ("condition", values)
    return tokens.assign_coords(coords)


def test_other_probes_supply_their_shifts(tokens):
    found = credit_of(
        probed(tokens, placebo_0="answer", placebo_1="negative_prompt"),
        rollouts_of(tokens),
        rules=["rlsd", "gcpo"],
    )
    owner, advantage = tokens["rollout"].values, found["advantage"].values
    told = shift(tokens, "placebo-0", "pos")
    ratio = np.clip(np.exp(np.sign(advantage) * told), 0.8, 1.2)
    np.testing.assert_allclose(found["weight"].sel(rule="rlsd"), 0.5 + ratio / 2, rtol=1e-12)
    asked = shift(tokens, "placebo-1", "neg")
    weight = found["weight"].sel(rule="gcpo").values
    for rollout in range(12):
        inside = owner == rollout
        score = np.minimum(np.expm1(asked) - asked, 10)[inside]
        assert (np.argsort(score) == np.argsort(weight[inside])).all()
    assert "answer" in found["evidence"].sel(rule="rlsd").item()


def test_a_rollout_reads_the_siblings_that_it_may_be_shown(tokens):
    tokens = probed(tokens.copy(deep=True), placebo_0="sibling")
    shown = [i for i, probe in enumerate(tokens["probe"].values) if probe == "sibling"]
    first = next(i for i in shown if tokens["level"].values[i] == "pos")
    tokens["comparable"][first, 0] = False  # its own text: only the second sibling is left
    for i in shown:
        tokens["comparable"][i, 1] = False  # nothing to show at all
        tokens["logp"][i, tokens["rollout"].values == 1] = np.nan
    found = credit_of(tokens, rollouts_of(tokens), rules=["sdpo"])["credit"].values[0]
    owner = tokens["rollout"].values
    logp = tokens["logp"].values.astype(np.float64)
    right = [i for i in shown if tokens["level"].values[i] == "pos"]
    shifts = np.stack([logp[i] - logp[0] for i in right])
    alone = owner == 0
    np.testing.assert_allclose(found[alone], shifts[1][alone], rtol=1e-12)
    assert np.isnan(found[owner == 1]).all()
    rest = owner > 1
    np.testing.assert_allclose(found[rest], np.log(np.exp(shifts).mean(axis=0))[rest], atol=1e-12)


def test_the_reference_has_no_opposite(tokens):
    with pytest.raises(StatisticsError, match="Run the probe `reference` first"):
        credit_of(tokens, rollouts_of(tokens), rules=["opsd"])
    place = int(np.flatnonzero(tokens["family"].values == "placebo-0")[0])
    opposite = tokens["family"].values == "placebo-0"
    opposite[place] = False
    told = probed(tokens, placebo_0="reference").isel(condition=~opposite)
    level = told["level"].values.astype("U10")
    level[told["probe"].values == "reference"] = "none"
    told = told.assign_coords(level=("condition", level))
    found = credit_of(told, rollouts_of(tokens), rules=["opsd"])["credit"].values[0]
    logp = tokens["logp"].values.astype(np.float64)
    np.testing.assert_allclose(found, logp[place] - logp[0], rtol=1e-12)


def test_planted_tokens_are_right_digits_and_first_wrong_tokens(tokens):
    with pytest.raises(StatisticsError, match="To get it: a planted task"):
        credit_of(tokens, rollouts_of(tokens), rules=["oracle"])
    owner = tokens["rollout"].values
    kind = np.where(np.arange(owner.size) % 2 == 0, "computed_digit", "other")
    wrong = np.zeros(owner.size, bool)
    wrong[np.flatnonzero(owner == 1)[2]] = True
    reward = np.array([1, 0, 1] * 4)
    known = tokens.assign_coords(
        kind=("token", kind),
        is_wrong_token=("token", wrong),
        reward=("token", reward[owner].astype(np.float32)),
    )
    found = credit_of(known, rollouts_of(tokens, reward=reward), rules=["oracle"])
    heavy = found["weight"].values[0] > 1
    planted = ((reward[owner] == 1) & (kind == "computed_digit")) | wrong
    assert (heavy == planted).all()


def test_what_cannot_be_assigned_is_refused(tokens):
    rollouts = rollouts_of(tokens)
    with pytest.raises(SchemaError, match=r"`rule` needs one of .*'cscr'.*it is 'nope'"):
        credit_of(tokens, rollouts, rules=["nope"])
    with pytest.raises(SchemaError, match=r"`advantage` needs one of .*'group_std'"):
        credit_of(tokens, rollouts, advantage="nope")
    undecided = rollouts_of(tokens, reward=[np.nan] * 12)
    with pytest.raises(StatisticsError, match="none of 12 rollouts is decided"):
        credit_of(tokens, undecided)
    odd = CATALOGUE["uniform"]._replace(needs=frozenset({"hidden"}))
    with pytest.raises(StatisticsError, match=r"needs the evidence \['hidden'\]"):
        credit_of(tokens, rollouts, rules={"odd": odd})


def test_a_rule_of_ones_own_and_one_that_does_not_multiply(tokens):
    def replaced(evidence):
        return np.full(int(evidence.length.sum()), 3.0)

    own = CATALOGUE["uniform"]._replace(assign=replaced, form="replaces", budget="free")
    rules = {"half": adjusted(CATALOGUE["cscr"], gamma=0.5), "own": own}
    found = credit_of(tokens, rollouts_of(tokens), rules=rules)
    assert json.loads(found["settings"].sel(rule="half").item())["gamma"] == 0.5
    assert (found["credit"].sel(rule="own") == 3).all()
    assert np.isnan(found["weight"].sel(rule="own")).all()
    assert found["tokens"].values.tolist() == [tokens.sizes["token"], 0]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("credit")
    policy, study = tiny_policy(), ts.Study(folder / "s.zarr")
    traces = write_traces(folder / "traces.jsonl")
    study.ingest(traces, format="jsonl", policy=policy, fields=FIELDS, limit=3)
    study.probe(policy, ["opposed"], frames=1, progress=False)
    return study


def test_credit_is_kept_in_the_store_and_plain_xarray_opens_it(store):
    found = ts.assign_credit(store, ["uniform", "cscr"])
    with xr.open_datatree(store.path, engine="zarr") as tree:
        node = tree["credit/cscr"].to_dataset()
        np.testing.assert_array_equal(node["weight"], found["weight"].sel(rule="cscr"))
        np.testing.assert_array_equal(node["credit"], found["credit"].sel(rule="cscr"))
        assert node["credit"].attrs["units"] == "advantage"
        assert node["moved"].item() == found["moved"].sel(rule="cscr")
        assert json.loads(node.attrs["settings"])["gamma"] == 0.2
        assert "opposed/verdict" in json.loads(node.attrs["evidence"])["z_pos"]
        for name in ("source", "form", "budget", "budget_meaning", "advantage", "pooled"):
            assert name in node.attrs
    assert store.info()["credit"] == ["cscr", "uniform"]
    np.testing.assert_array_equal(found["token_id"], store.tokens()["token_id"])


def test_a_read_only_study_is_not_written(store):
    with pytest.raises(StoreError, match="mode"):
        ts.assign_credit(ts.Study(store.path, mode="r"))


def test_the_command_prints_what_the_weights_do(store):
    run = CliRunner().invoke
    came = run(app, ["credit", str(store.path), "--rule", "cscr", "--rule", "uniform", "--json"])
    assert came.exit_code == 0, came.output
    found = json.loads(came.stdout)
    cscr, uniform = found["rules"]
    assert (cscr["rule"], uniform["rule"]) == ("cscr", "uniform")
    assert uniform["effective"] == 1.0
    assert uniform["with_surprisal"] is None
    assert cscr["tokens"] == store.info()["tokens"]
    assert found["pooled"] is False
    shown = run(app, ["credit", str(store.path)])
    assert shown.exit_code == 0, shown.output
    assert "with_surprisal" in shown.stdout
    assert "cscr†" in shown.stdout
    assert "pooled: False" in shown.stdout
    assert uniform["rotation"] == 0
    assert cscr["rotation"] > 0
    listed = run(app, ["credit", "--list"])
    assert listed.exit_code == 0, listed.output
    assert "ep_grpo†" in listed.stdout
    assert "inferred (†): a reconstruction" in listed.stdout
    lacking = run(app, ["credit", str(store.path), "--rule", "cscr_placebo"])
    assert lacking.exit_code == 2
    assert "Run the probe `placebo` first" in lacking.stderr


def test_the_reference_solution_is_read_from_its_own_probe(tokens):
    probe = tokens["probe"].values.astype(object)
    place = next(i for i, name in enumerate(probe) if name == "opposed")
    probe[place] = "reference"
    tokens = tokens.assign_coords(probe=("condition", probe.astype(str)))
    found = credit_of(tokens, rollouts_of(tokens), rules=["opsd"])
    shift = (tokens["logp"][place] - tokens["logp"].sel(condition="base")).values
    np.testing.assert_allclose(found["credit"].sel(rule="opsd"), shift, atol=1e-6)
    with pytest.raises(StatisticsError, match="Run the probe `reference` first"):
        credit_of(tokens.isel(condition=probe != "reference"), rollouts_of(tokens), rules=["opsd"])
