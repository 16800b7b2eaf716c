import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr

from tests.store import driver
from tests.store.compare import equal_stores
from tokensense.errors import StoreError
from tokensense.store import Archive, tree


class FaultError(Exception):
    """Stands for a kill: everything after it does not happen."""


def faulty(step):
    def on_event(event):
        if event == step:
            raise FaultError(step)

    return on_event


OLD = xr.Dataset({"mean": ("kind", np.arange(5.0))}, attrs={"made": "first"})
NEW = xr.Dataset({"mean": ("kind", np.arange(50.0) + 7)}, attrs={"made": "second"})
# What a writer has committed shows up when the store is next opened for writing.
STEPS = {
    "publish:built": OLD,
    "publish:ready": NEW,
    "publish:hidden": NEW,
    "publish:moved": NEW,
    "publish:placed": NEW,
    "publish:consolidated": NEW,
}


@pytest.mark.parametrize("step", STEPS)
def test_a_node_is_replaced_wholly_or_not_at_all(tmp_path, step):
    paths = tmp_path / "one.zarr", tmp_path / "two.zarr"
    for path in paths:
        with Archive(path) as archive:
            archive.write_node("stats/other", OLD)
            archive.write_node("stats/shifts", OLD)
    with pytest.raises(FaultError), Archive(paths[0], on_event=faulty(step)) as archive:
        archive.write_node("stats/shifts", NEW)
    # Plain xarray sees the old one, the new one or none, and always the rest.
    with xr.open_datatree(paths[0]) as found:
        xr.testing.assert_equal(found["stats/other"].to_dataset().load(), OLD)
        if "shifts" in found["stats"].children:
            shifts = found["stats/shifts"].to_dataset().load()
            wanted = NEW if shifts.attrs["made"] == "second" else OLD
            xr.testing.assert_equal(shifts, wanted)
    # The lock was given back in good order here; a kill leaves the holder file.
    (paths[0] / tree.WORK / "holder.json").write_text("{}")
    (paths[0] / tree.WORK / "holder.json").unlink()
    with Archive(paths[0]) as archive, Archive(paths[1]) as other:
        archive.write_node("stats/next", OLD)
        other.write_node("stats/shifts", STEPS[step])
        other.write_node("stats/next", OLD)
        assert archive.read("stats/shifts").attrs["made"] == STEPS[step].attrs["made"]
    assert equal_stores(*paths) == []
    leftovers = [p.name for p in (paths[0] / tree.WORK).rglob("*")]
    assert "stats@shifts" not in leftovers


def test_rolling_forward_may_itself_be_interrupted(tmp_path):
    path = tmp_path / "one.zarr"
    with Archive(path) as archive:
        archive.write_node("stats/shifts", OLD)
    for step in ("publish:ready", "publish:hidden", "publish:moved", "publish:placed"):
        with pytest.raises(FaultError), Archive(path, on_event=faulty(step)) as archive:
            archive.write_node("stats/shifts", NEW)
    with Archive(path) as archive:
        archive.write_node("stats/next", OLD)
        assert archive.read("stats/shifts").attrs["made"] == "second"


def test_our_consolidated_metadata_are_zarrs(tmp_path):
    path = tmp_path / "one.zarr"
    driver.run(path, number=8, mean=30)
    for group in ("", "probes", "probes/opposed", "rollouts"):
        ours = (path / group / "zarr.json").read_bytes()
        with warnings.catch_warnings():
            # zarr says that v3 does not know them, and that .work is no zarr.
            warnings.simplefilter("ignore")
            zarr.consolidate_metadata(path, path=group or None)
        assert (path / group / "zarr.json").read_bytes() == ours


def test_every_group_opens_on_its_own_without_a_warning(tmp_path):
    path = tmp_path / "one.zarr"
    driver.run(path, number=8, mean=30)
    for group in ("/", "probes", "probes/opposed", "stats", "rollouts"):
        with xr.open_datatree(path, group=group) as found:
            found.load()
    with xr.open_dataset(path, engine="zarr", group="probes/opposed") as found:
        assert found["logp"].dims == ("condition", "token")


def test_a_group_that_is_hidden_is_only_hidden(tmp_path):
    path = tmp_path / "one.zarr"
    with Archive(path) as archive:
        archive.write_node("stats/a", OLD)
        archive.write_node("stats/b", OLD)
        archive.write_node("credit/a", OLD)
    tree.consolidate(path, without=["stats/a"])
    with xr.open_datatree(path) as found:
        assert found.groups == ("/", "/credit", "/stats", "/credit/a", "/stats/b")
    tree.consolidate(path)
    assert list(tree.leaves(path)) == ["/credit/a", "/stats/a", "/stats/b"]


def test_a_half_written_zarr_is_cleared(tmp_path):
    path = tmp_path / "one.zarr"
    with Archive(path) as archive:
        archive.write_node("stats/a", OLD)
    building = path / tree.WORK / "building" / "stats@b"
    (building / "mean" / "c").mkdir(parents=True)
    (building / "zarr.json").write_text('{"attributes": {}, "zarr_f')
    (building / "mean" / "c" / "0.partial").write_bytes(b"x")
    (path / ".zarr.json.77.part").write_text("{")
    (path / "stats" / ".zarr.json.77.part").write_text("{")
    with Archive(path) as archive:
        archive.write_node("stats/c", OLD)
        assert archive.nodes() == ["/stats/a", "/stats/c"]
    assert not building.exists()
    assert not list(path.rglob("*.part"))


def test_an_exception_while_building_leaves_nothing(tmp_path):
    def build(folder):
        folder.mkdir()
        raise FaultError

    tree.write_group(tmp_path / "s", {})
    with pytest.raises(FaultError):
        tree.publish(tmp_path / "s", "/stats/a", build, on_event=lambda event: None)
    assert list(tree.leaves(tmp_path / "s")) == []
    assert not list((tmp_path / "s" / tree.WORK / "building").iterdir())


def test_small_files_are_whole_or_old(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    tree.write_json(path, {"a": 1})
    monkeypatch.setattr(Path, "replace", lambda self, target: (_ for _ in ()).throw(FaultError))
    with pytest.raises(FaultError):
        tree.write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("content", [None, "{", "[1]"])
def test_damaged_json_is_named(tmp_path, content):
    path = tmp_path / "zarr.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(StoreError, match=rf"listing nodes needs .*{path}"):
        tree.read_json(path, what="listing nodes")


def test_disk_errors_say_what_to_do_and_ours_pass(tmp_path):
    with (
        pytest.raises(
            StoreError, match=r"writing it needs a writable .* \([\d,]+ bytes are free\)"
        ),
        tree.disk(tmp_path, "it"),
    ):
        raise PermissionError(13, "Permission denied")
    with pytest.raises(StoreError, match=r"^ours$"), tree.disk(tmp_path, "it"):
        raise StoreError("ours")


@pytest.mark.parametrize("killed_at", range(12))
def test_several_nodes_are_each_whole_and_a_next_writer_finishes_what_was_committed(
    tmp_path, killed_at
):
    store = tmp_path / "s.zarr"
    with Archive(store) as archive:
        archive.write_node("/stats/a", xr.Dataset({"x": ("t", [1])}))
    events = []

    def event(name):
        events.append(name)
        if len(events) > killed_at:
            raise FaultError(name)

    new = {f"/stats/{name}": xr.Dataset({"x": ("t", [2, 2])}) for name in "abc"}
    archive = Archive(store, on_event=event)
    try:
        archive.write_nodes(new)
    except FaultError:
        committed = sum(name == "publish:ready" for name in events)
    else:
        committed = 3
    archive.close()
    # The next writer rolls forward; plain xarray sees whole nodes and nothing else.
    with Archive(store) as archive:
        archive.write_node("/stats/d", xr.Dataset({"x": ("t", [3])}))
    with xr.open_datatree(store) as found:
        lengths = {name: node["x"].size for name, node in found["stats"].children.items()}
    expected = {"a": 2 if committed else 1, "d": 1}
    expected |= dict.fromkeys("abc"[:committed], 2)
    assert lengths == expected
    assert not tree.outdated(store)


def test_the_metadata_are_brought_up_to_date_once_for_all(tmp_path):
    events = []
    with Archive(tmp_path / "s", on_event=events.append) as archive:
        archive.write_nodes({f"/stats/n{i}": xr.Dataset({"x": ("t", [i])}) for i in range(5)})
        archive.write_nodes({f"/stats/n{i}": xr.Dataset({"x": ("t", [-i])}) for i in range(5)})
    assert events.count("publish:consolidated") == 2
    assert events.count("publish:hidden") == 1
    assert events.count("publish:placed") == 10
