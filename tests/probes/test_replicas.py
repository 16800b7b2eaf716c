import shutil

import numpy as np
import pytest
import xarray as xr

from tests.bigram import bigram_policy
from tests.builders import imported
from tests.probes.tiny import tiny_policy
from tests.reference.scorer import reference_scores
from tokensense.errors import StatisticsError, StoreError
from tokensense.models.scorer import TOKENS_PER_ROW
from tokensense.probes import CATALOGUE, replicas
from tokensense.probes.contexts import read_problems
from tokensense.probes.replicas import NODE, measure
from tokensense.probes.rescore import run_probes
from tokensense.probes.templates import from_dicts
from tokensense.rollouts.trajectory import assemble
from tokensense.store.archive import Archive
from tokensense.store.tree import consolidate


@pytest.fixture(scope="module")
def tiny():
    return tiny_policy()


def probed(path, policy, **conditions):
    archive = Archive(path)
    archive.write_rollouts(assemble(imported(3), policy))
    run_probes(archive, policy, conditions, progress=False)
    return archive


@pytest.fixture(scope="module")
def finished(tiny, tmp_path_factory):
    path = tmp_path_factory.mktemp("finished") / "s.zarr"
    mine = from_dicts([{"name": "hi", "text": "Hi."}])
    probed(path, tiny, opposed=CATALOGUE["opposed"](tiny, frames=1), mine=mine)
    return path


@pytest.fixture
def archive(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "s.zarr")
    return Archive(tmp_path / "s.zarr")


def test_another_row_plan_differs_in_last_bits_only(archive, tiny):
    found = measure(archive, tiny, rollouts=5)
    lengths = archive.rollouts()["length"].values
    with xr.open_datatree(archive.path) as tree:
        node = tree["stats/numerical_floor"].to_dataset()
        assert 0 <= found["q50"] <= found["q99"] <= found["max"] < 1e-4
        assert found["max"] > 0
        assert found["tokens"] == lengths[node.attrs["rollouts"]].sum()
        assert len(node.attrs["rollouts"]) == 5
        words = node["quantity"].attrs["flag_meanings"].split()
        assert words == ["base", "condition", "shift"]
        assert node["q99"].values[2] == found["q99"]
        assert node["q99"].attrs["units"] == "nats"
        assert (
            node.attrs["condition"] == found["condition"] == "verdict_verified_rejected_label_pos"
        )
        assert node.attrs["replica_tokens_per_row"] == 1
        assert node.attrs["stored_tokens_per_row"] == TOKENS_PER_ROW


def test_the_closed_form_policy_has_no_floor(tmp_path):
    bigram = bigram_policy()
    opposed = CATALOGUE["opposed"](bigram, frames=1)
    found = measure(probed(tmp_path / "s.zarr", bigram, opposed=opposed), bigram, rollouts=3)
    assert (found["q50"], found["q99"], found["max"]) == (0.0, 0.0, 0.0)


def test_a_wrong_stored_score_is_seen(archive, tiny, monkeypatch):
    """The differences are between the store and a fresh score, token by token."""
    read = Archive.read

    def spoiled(self, node, **how):
        found = read(self, node, **how)
        if node != "/probes/opposed":
            return found
        logp = found["logp"].load().copy()
        logp[0] = logp[0] + np.where(np.arange(logp.sizes["token"]) == 0, 0.25, 0.0)
        return found.assign(logp=logp)

    monkeypatch.setattr(Archive, "read", spoiled)
    found = measure(archive, tiny, rollouts=100)
    assert found["max"] == pytest.approx(0.25, abs=1e-4)
    assert found["q50"] < 1e-4
    assert archive.read(NODE)["max"].values[0] < 1e-4  # the base is as it was


def test_the_replica_is_the_same_quantity_as_the_reference(archive, tiny):
    measure(archive, tiny, rollouts=100)
    problems = read_problems(archive.rollouts(), tiny)
    want = reference_scores(tiny.model, list(problems.bases[0]), list(problems.responses[0]))
    stored = archive.read("/probes/base")["logp"].values[0, : len(problems.responses[0])]
    floor = float(archive.read(NODE)["max"][0])
    np.testing.assert_allclose(stored, want["logp"], atol=1e-5 + floor)


def test_the_sample_is_seeded_and_what_was_measured_is_kept(archive, tiny, monkeypatch):
    first = measure(archive, tiny, rollouts=4)
    chosen = archive.read(NODE).attrs["rollouts"]
    other = measure(archive, tiny, rollouts=4, seed=1)
    assert archive.read(NODE).attrs["rollouts"] != chosen
    assert measure(archive, tiny, rollouts=4) == first != other
    assert archive.read(NODE).attrs["rollouts"] == chosen
    monkeypatch.setattr(replicas, "score", None)
    assert measure(archive, tiny, rollouts=4) == first


def test_opposed_is_taken_where_it_is_finished_else_the_first_probe(archive, tiny):
    assert measure(archive, tiny, rollouts=2)["condition"].startswith("verdict")
    assert measure(archive, tiny, rollouts=2, probe="mine")["condition"] == "hi"
    shutil.rmtree(archive.path / "probes" / "opposed")
    consolidate(archive.path)
    assert measure(archive, tiny, rollouts=2)["condition"] == "hi"


def test_what_cannot_be_measured_says_so(archive, tiny, tmp_path):
    with pytest.raises(StoreError, match="needs the policy that scored probe `opposed`"):
        measure(archive, tiny_policy(seed=1))
    with pytest.raises(StoreError, match="other"):
        measure(archive, tiny, probe="other")
    unknown = from_dicts([{"name": "told", "text": "{answer} <|start|>"}])
    marked = probed(tmp_path / "marked.zarr", tiny, mine=unknown)
    with pytest.raises(StatisticsError, match="of 12 rollouts there is none"):
        measure(marked, tiny)
    shutil.rmtree(marked.path / "probes" / "mine")
    consolidate(marked.path)
    with pytest.raises(StoreError, match=r"beside the base; finished are \['base'\]"):
        measure(marked, tiny)
