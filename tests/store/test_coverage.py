"""Next week's rollouts: appended, refused, killed; probes go on with the new ones."""

import json
from contextlib import suppress

import numpy as np
import pytest
import xarray as xr

from tests.store import driver
from tests.store.compare import equal_stores
from tests.store.test_archive import state
from tokensense.errors import StoreError
from tokensense.rollouts.joining import joined
from tokensense.schema import PROBE, ROLLOUTS
from tokensense.store import Archive, coverage, info
from tokensense.store.tree import WORK

FIRST, MORE = 12, 7


@pytest.fixture(scope="module")
def weeks():
    """Rollouts of two weeks."""
    return driver.rollouts(number=FIRST, mean=30), driver.rollouts(number=MORE, mean=20, seed=1)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "study.zarr"


def probe(archive, name="opposed"):
    """Start or go on, score what is missing; gives the numbers of the blocks that were scored."""
    frozen = archive.rollouts()
    number = frozen.sizes["rollout"]
    blocks = archive.assembled_blocks(name)
    done = blocks[-1][1] if blocks else 0
    blocks += [(done + a, done + b) for a, b in driver.ranges(number - done, 5)]
    todo = archive.start_probe(name, driver.header(), blocks)
    for index in todo:
        archive.write_block(name, index, driver.block(frozen, *blocks[index]))
    archive.assemble_probe(name, coords=driver.coords(), attrs={"scored_by": "m"})
    return todo


def test_what_sets_blocks_apart_is_kept_with_them_and_told_by_the_node(path, weeks):
    """Notes survive a damaged block scored anew, assembly, and an append."""
    blocks, note = driver.ranges(FIRST, 5), {"tokens_per_row": 512}
    with Archive(path) as archive:
        archive.write_rollouts(weeks[0])
        archive.start_probe("opposed", driver.header(), blocks)
        for index, told in enumerate((note, {}, {"tokens_per_row": 1})):
            archive.write_block("opposed", index, driver.block(weeks[0], *blocks[index]), **told)
        assert set(archive.read_block("opposed", 0)) == set(PROBE)
        (last,) = (path / WORK / "probes" / "opposed").glob("000002-*.npz")
        last.write_bytes(b"damaged")
        assert archive.start_probe("opposed", driver.header(), blocks) == [2]
        archive.write_block("opposed", 2, driver.block(weeks[0], *blocks[2]))
        archive.assemble_probe("opposed", coords=driver.coords())
        assert json.loads(archive.read("/probes/opposed").attrs["block_notes"]) == {"0": note}
        archive.append_rollouts(weeks[1], join=joined)
        probe(archive)
        assert json.loads(archive.read("/probes/opposed").attrs["block_notes"]) == {"0": note}


def test_a_probe_goes_on_with_the_rollouts_that_were_appended(path, weeks):
    with Archive(path) as archive:
        archive.write_rollouts(weeks[0])
        assert probe(archive) == [0, 1, 2]
        archive.write_node("stats/shifts", xr.Dataset({"a": 1}))
        assert archive.append_rollouts(weeks[1], join=joined) == MORE
        # What was made before is there, for whoever knows; it is not taken for all.
        assert archive.nodes() == ["/rollouts", "/probes/opposed", "/stats/shifts"]
        assert not archive.is_finished("opposed")
        for node in ("/probes/opposed", "/stats/shifts"):
            assert not archive.has(node)
            with pytest.raises(StoreError, match=rf"{node} .*on the first {FIRST} of them"):
                archive.read(node)
        found = info(archive)["probes"]["opposed"]
        assert (found["state"], found["rollouts_done"]) == ("unfinished", FIRST)
        with xr.open_datatree(path) as tree:
            before = tree["probes/opposed"].to_dataset().load()
        assert before.sizes["rollout"] == FIRST
        assert probe(archive) == [3, 4]
        after = archive.read("/probes/opposed")
        both = archive.rollouts()
        whole = driver.block(both, 0, FIRST + MORE)
        for name in PROBE:
            np.testing.assert_array_equal(after[name].values, whole[name])
        np.testing.assert_array_equal(after["length"].values, both["length"].values)
        assert after.attrs["block_stops"] == [5, 10, 12, 17, 19]
        assert probe(archive) == []
        assert not (path / WORK / "probes" / "opposed").exists()
        archive.write_node("stats/shifts", xr.Dataset({"a": 2}))
        assert archive.read("/stats/shifts")["a"] == 2


def test_what_was_there_is_where_it_was(path, weeks):
    first, second = weeks
    with Archive(path) as archive:
        archive.write_rollouts(first)
        archive.append_rollouts(second, join=joined)
        both = archive.rollouts().load()
    sizes = {"rollout": FIRST, "token": first.sizes["token"], "problem": first.sizes["problem"]}
    for name, variable in ROLLOUTS.items():
        (dim,) = variable.dims
        if dim in sizes:
            np.testing.assert_array_equal(both[name].values[: sizes[dim]], first[name].values)
    for name in ("length", "reward", "token_id", "kind", "finish"):
        np.testing.assert_array_equal(
            both[name].values, np.concatenate([first[name].values, second[name].values])
        )
    parts = coverage.parts_of(both.attrs, both.sizes["rollout"])
    assert [part.rollouts for part in parts] == [FIRST, FIRST + MORE]
    assert parts[-1].digest == both.attrs["digest"]
    assert parts[1].attributes["sampled_by"] == ["m"]


def test_the_same_rollouts_again_do_nothing(path, weeks):
    with Archive(path) as archive:
        assert archive.append_rollouts(weeks[0], join=joined) == FIRST
        archive.append_rollouts(weeks[1], join=joined)
        before = state(path)
        for again in (*weeks, driver.rollouts(number=0)):
            assert archive.append_rollouts(again, join=joined) == 0
        assert state(path) == before


def test_the_order_of_appends_alone_decides_the_bytes(tmp_path, weeks):
    paths = tmp_path / "one.zarr", tmp_path / "two.zarr"
    for path in paths:
        with Archive(path) as archive:
            archive.write_rollouts(weeks[0])
            probe(archive)
            archive.append_rollouts(weeks[1], join=joined)
        if path == paths[1]:  # a run that is stopped between two blocks
            with Archive(path) as archive:
                frozen = archive.rollouts()
                blocks = [*archive.assembled_blocks("opposed"), (12, 17), (17, 19)]
                archive.start_probe("opposed", driver.header(), blocks)
                archive.write_block("opposed", 4, driver.block(frozen, 17, 19))
        with Archive(path) as archive:
            assert probe(archive) == ([3] if path == paths[1] else [3, 4])
    assert equal_stores(*paths) == []


class FaultError(Exception):
    pass


@pytest.mark.parametrize(
    "step",
    ["publish:built", "publish:ready", "publish:hidden", "publish:moved", "publish:placed",
     "assemble:shard", "block:rename", "probe:cleaned"],
)  # fmt: skip
def test_a_fault_at_any_step_of_an_append_or_of_what_follows_is_made_good(tmp_path, weeks, step):
    paths = tmp_path / "one.zarr", tmp_path / "two.zarr"
    met = []

    def fault(event):
        if event == step:
            met.append(event)
            raise FaultError

    for path in paths:
        with Archive(path) as archive:
            archive.write_rollouts(weeks[0])
            probe(archive)
    for action in (lambda archive: archive.append_rollouts(weeks[1], join=joined), probe):
        with suppress(FaultError), Archive(paths[0], on_event=fault) as archive:
            action(archive)
        for path in paths:
            with Archive(path) as archive:
                action(archive)
    assert met
    assert equal_stores(*paths) == []


def test_an_append_while_a_probe_is_under_way_is_refused(path, weeks):
    with Archive(path) as archive:
        archive.write_rollouts(weeks[0])
        archive.start_probe("opposed", driver.header(), driver.ranges(FIRST, 5))
        before = state(path)
        with pytest.raises(StoreError, match=r"without unfinished probes; unfinished are \['opp"):
            archive.append_rollouts(weeks[1], join=joined)
        assert state(path) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.assign_attrs(tokenizer_digest="u"), "'t' in the store, 'u' now"),
        (lambda d: d.assign_attrs(engine="x"), "attribute `engine` as the store has it"),
        (lambda d: d.drop_vars("kind"), "`kind` is missing"),
        (lambda d: d.assign(kind=d["kind"].astype("float32")), "`kind` needs dtype int8"),
    ],
)
def test_a_refused_append_leaves_the_store_as_it_was(path, weeks, change, message):
    with Archive(path) as archive:
        archive.write_rollouts(weeks[0])
        before = state(path)
        with pytest.raises((StoreError, ValueError), match=message):
            archive.append_rollouts(change(weeks[1]), join=joined)
        with pytest.raises(StoreError, match="changed would be"):
            archive.append_rollouts(weeks[1], join=lambda stored, offered: joined(offered, stored))
        assert state(path) == before


def test_blocks_that_do_not_go_on_after_those_of_the_node_are_refused(path, weeks):
    with Archive(path) as archive:
        archive.write_rollouts(weeks[0])
        probe(archive)
        archive.append_rollouts(weeks[1], join=joined)
        before = state(path)
        with pytest.raises(ValueError, match="has 3 blocks and needs to go on after them"):
            archive.start_probe("opposed", driver.header(), driver.ranges(FIRST + MORE, 4))
        with pytest.raises(StoreError, match="needs the header it was started with"):
            archive.start_probe(
                "opposed", driver.header(scoring=1), [(0, 5), (5, 10), (10, 12), (12, 19)]
            )
        assert state(path) == before
        archive.start_probe("opposed", driver.header(), [(0, 5), (5, 10), (10, 12), (12, 19)])
        with pytest.raises(ValueError, match=r"block 0 .* is in the store already"):
            archive.write_block("opposed", 0, driver.block(archive.rollouts(), 0, 5))


def test_nodes_from_before_nodes_said_what_they_were_made_on(path, weeks):
    with Archive(path) as archive:
        archive.write_node("stats/old", xr.Dataset({"a": 1}))  # before any rollouts: says nothing
        archive.write_rollouts(weeks[0])
        assert archive.has("/stats/old")
        archive.append_rollouts(weeks[1], join=joined)
        assert not archive.has("/stats/old")
        assert coverage.covered(path, "/stats/old") == 0
        assert not archive.has("/stats/absent")
        assert "parts" in json.loads((path / "rollouts" / "zarr.json").read_text())["attributes"]
