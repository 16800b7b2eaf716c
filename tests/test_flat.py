"""The flat view: what a generator knows arrives at its tokens, also where a store is older."""

import numpy as np
import pytest

import tokensense as ts
from tests.probes.tiny import tiny_policy
from tokensense.flat import flat_tokens, named
from tokensense.rollouts.trajectory import Imported, Trace, assemble
from tokensense.schema import Label
from tokensense.stats.grouped import mean_by
from tokensense.tasks.problem import Problem

WRONG_TOKEN = [2, -1, 0]
LOGPS = [[-0.5, -1.0, -2.0], [-0.25], [-4.0, -3.0]]


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Three rollouts of known lengths, probed: `/rollouts` and the base probe."""
    policy = tiny_policy()
    ids = policy.encode("12")
    traces = [
        Trace(
            "p", f"t{k}", "", ids=tuple(ids[:1] * len(logps)), reward=float(k < 2),
            label=Label.NO_ERROR if wrong < 0 else Label.ERROR, wrong_token=wrong,
            logps=tuple(logps),
        )
        for k, (wrong, logps) in enumerate(zip(WRONG_TOKEN, LOGPS, strict=True))
    ]  # fmt: skip
    study = ts.Study(tmp_path_factory.mktemp("flat") / "s.zarr")
    made = Imported([Problem("p", "What is 1+1?", "2")], traces)
    with study.archive() as archive:
        archive.write_rollouts(assemble(made, policy).assign_attrs(sampled_by_digest=""))
    study.probe(policy, ["opposed"], frames=1, progress=False)
    return study


def test_first_wrong_tokens_and_sampled_logps_arrive(stored):
    tokens = stored.tokens()
    assert tokens["wrong_token"].values.tolist() == WRONG_TOKEN
    assert tokens["is_wrong_token"].values.tolist() == [False, False, True, False, True, False]
    assert tokens["sampled_logp"].values.tolist() == [x for row in LOGPS for x in row]
    assert tokens["sampled_logp"].attrs["units"] == "nats"


def test_a_right_answer_with_a_wrong_token_is_counted_as_luck(stored):
    assert stored.info()["right_by_luck"] == 1  # the first: reward 1, labelled wrong


def test_stores_from_before_read_as_not_known(stored):
    archive = stored.archive()
    older = archive.rollouts().drop_vars(["wrong_token", "sampled_logp"])
    tokens = flat_tokens(older, {"base": archive.read("/probes/base")})
    assert tokens["wrong_token"].values.tolist() == [-1, -1, -1]
    assert tokens["wrong_token"].dtype == np.int32
    assert not tokens["is_wrong_token"].values.any()
    assert np.isnan(tokens["sampled_logp"].values).all()
    assert tokens["sampled_logp"].dtype == np.float32


def test_a_lazy_view_holds_the_same_and_reads_nothing_before_it_is_asked(stored):
    eager, lazy = stored.tokens(), stored.tokens(lazy=True)
    for name, variable in lazy.variables.items():
        if "token" in variable.dims:
            assert variable.chunks, name
    left_out = {"text", "generator"}
    assert set(eager.variables) - set(lazy.variables) == left_out
    for name in set(eager.variables) - left_out - {"kind"}:
        assert eager[name].dtype == lazy[name].dtype, name
        np.testing.assert_array_equal(eager[name].values, lazy[name].values, err_msg=str(name))
    np.testing.assert_array_equal(eager["kind"].values, named(lazy["kind"]))
    assert lazy.attrs == eager.attrs


def test_the_mean_by_kind_of_a_lazy_view_is_that_of_groupby(stored):
    found = mean_by(*(stored.tokens(lazy=True)[name] for name in ("shift", "kind")))
    wanted = stored.tokens()["shift"].groupby("kind").mean()
    for kind in wanted["kind"].values:
        np.testing.assert_allclose(
            found["mean"].sel(kind=kind).values, wanted.sel(kind=kind).values, rtol=1e-6
        )
    assert found["count"].sum("kind").values.tolist() == [6] * found.sizes["condition"]
