"""Every kind of damage is found, what can be repaired is, and nothing is thrown away."""

import json
import shutil

import numpy as np
import pytest
import xarray as xr

from tests.store import driver
from tests.store.compare import equal_stores
from tests.store.test_archive import state
from tokensense.errors import LockError, StoreError
from tokensense.store import Archive
from tokensense.store.health import check, repair
from tokensense.store.lock import this_process
from tokensense.store.tree import METADATA, WORK

SMALL = {"number": 8, "mean": 30}


@pytest.fixture(scope="module")
def whole(memory):
    path = memory / "whole.zarr"
    driver.run(path, **SMALL)
    return path


@pytest.fixture
def path(whole, tmp_path):
    """A copy, to damage."""
    return shutil.copytree(whole, tmp_path / "study.zarr")


def chunk(path, node, name):
    return next(file for file in (path / node / name / "c").rglob("*") if file.is_file())


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def places(path):
    return {finding.place: finding.remedy for finding in check(path)}


def test_a_whole_store_has_no_findings_and_a_repair_does_nothing(path):
    before = state(path)
    assert check(path) == []
    assert state(path) == before
    assert repair(path) == []
    assert state(path) == before


@pytest.mark.parametrize(
    "damage", [flip, lambda file: file.unlink(), lambda file: file.write_bytes(b"")]
)
@pytest.mark.parametrize("node", ["probes/opposed", "stats/shifts"])
def test_a_damaged_node_is_set_aside_and_made_again(path, whole, node, damage):
    damage(chunk(path, node, "logp" if "probes" in node else "mean"))
    assert places(path) == {f"/{node}": "again"}
    (done,) = repair(path)
    assert f"/{node}: damaged; moved to .work/damaged/{node.replace('/', '@')}" in done
    assert check(path) == []
    with xr.open_datatree(path) as found:
        assert f"/{node}" not in found.groups
    (kept,) = (path / WORK / "damaged").iterdir()
    assert (kept / METADATA).is_file()
    driver.run(path, **SMALL)
    assert equal_stores(path, whole) == []


def test_damaged_rollouts_are_told_and_left_alone(path):
    flip(chunk(path, "rollouts", "token_id"))
    before = state(path)
    assert places(path) == {"/rollouts": "copy"}
    assert repair(path) == []
    assert state(path) == before


def test_a_value_that_no_checksum_protects_is_found_by_the_digest(path):
    import zarr

    array = zarr.open_array(path / "rollouts" / "reward", mode="r+", zarr_format=3)
    array[0] = 1.0 if array[0] != 1.0 else 0.0
    (finding,) = check(path)
    assert finding == ("/rollouts", "its digest is not that of its arrays", "copy")


def test_what_a_killed_writer_left_is_cleared(path, whole):
    (path / ".zarr.json.77.part").write_text("{")
    (path / WORK / "building").mkdir(exist_ok=True)
    (path / WORK / "building" / "stats@x").mkdir()
    dead = this_process()._replace(pid=2**22 + 1)
    (path / WORK / "holder.json").write_text(json.dumps(dead._asdict()))
    assert set(places(path).values()) == {"repair"}
    assert len(check(path)) == 3
    assert len(repair(path)) == 2
    assert check(path) == []
    assert equal_stores(path, whole) == []


def test_stale_consolidated_metadata_are_renewed(path, whole):
    root = json.loads((path / METADATA).read_text())
    del root["consolidated_metadata"]["metadata"]["stats/shifts"]
    (path / METADATA).write_text(json.dumps(root))
    assert places(path) == {"/": "repair"}
    assert repair(path)
    assert check(path) == []
    assert equal_stores(path, whole) == []


@pytest.mark.parametrize("what", ["block", "plan"])
def test_damage_of_an_unfinished_probe(path, what):
    frozen = Archive(path, mode="r").rollouts()
    with Archive(path) as archive:
        archive.start_probe("neutral", driver.header(), [(0, 4), (4, 8)])
        for index, (start, stop) in enumerate([(0, 4), (4, 8)]):
            archive.write_block("neutral", index, driver.block(frozen, start, stop))
    folder = path / WORK / "probes" / "neutral"
    if what == "block":
        flip(next(folder.glob("000001-*")))
    else:
        (folder / "plan.json").write_text("{")
    assert places(path) == {".work/probes/neutral": "again"}
    assert len(repair(path)) == 1
    assert check(path) == []
    with Archive(path) as archive:
        todo = archive.start_probe("neutral", driver.header(), [(0, 4), (4, 8)])
    assert todo == ([1] if what == "block" else [0, 1])


def test_a_probe_that_does_not_fit_its_rollouts_is_found(path):
    group = path / "probes" / "opposed"
    with xr.open_dataset(group, engine="zarr", consolidated=False) as node:
        changed = node.load()
    changed["length"][:2] = changed["length"].values[1::-1]
    changed["length"].encoding.clear()
    changed[["length"]].to_zarr(group, mode="a", zarr_format=3, consolidated=False)
    wanted = ("/probes/opposed", "`length` is not that of /rollouts", "again")
    assert wanted in check(path)
    repair(path)
    assert check(path) == []
    assert not Archive(path).is_finished("opposed")


def test_nodes_from_before_an_append_are_told_and_kept(path):
    from tokensense.rollouts.joining import joined

    with Archive(path) as archive:
        archive.append_rollouts(driver.rollouts(number=4, mean=9, seed=2), join=joined)
    found = check(path)
    assert {finding.place for finding in found} == {"/probes/opposed", "/stats/shifts"}
    assert {finding.what for finding in found} == {"was made on the first 8 rollouts"}
    assert repair(path) == []
    assert Archive(path).nodes() == ["/rollouts", "/probes/opposed", "/stats/shifts"]


def test_a_store_at_work_is_looked_at_and_not_repaired(path):
    with Archive(path) as archive:
        archive.start_probe("neutral", driver.header(), [(0, 8)])
        assert check(path) == []
        with pytest.raises(LockError, match="held by process"):
            repair(path)


def test_other_formats(tmp_path, path):
    root = json.loads((path / METADATA).read_text())
    root["attributes"]["format_version"] = 2
    (path / METADATA).write_text(json.dumps(root))
    for look in (check, repair):
        with pytest.raises(StoreError, match=r"has format 2\. Install a newer"):
            look(path)
        with pytest.raises(StoreError, match="does not exist"):
            look(tmp_path / "absent")


def test_values_are_compared_not_only_checksums(path):
    # A lost chunk of zeros would decode to what was there: still, it is missing.
    file = chunk(path, "rollouts", "kind")
    assert not np.any(Archive(path, mode="r").rollouts()["kind"].values)
    file.unlink()
    (finding,) = check(path)
    assert "`kind`: chunk (0,) is missing" in finding.what
