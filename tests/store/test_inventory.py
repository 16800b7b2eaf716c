import json

import xarray as xr

from tests.store import driver
from tokensense.store import Archive, info


def test_info_of_a_running_store(tmp_path):
    with Archive(tmp_path / "a.zarr") as archive:
        dataset = driver.rollouts()
        archive.write_rollouts(dataset)
        blocks = driver.ranges(24, 5)
        archive.start_probe("opposed", driver.header(), blocks)
        for index in (0, 3):
            archive.write_block("opposed", index, driver.block(dataset, *blocks[index]))
        found = info(Archive(tmp_path / "a.zarr", mode="r"))
        json.dumps(found, allow_nan=False)
        assert found["format_version"] == 1
        assert found["probes"]["opposed"] | {"bytes": 0} == {
            "state": "unfinished", "blocks": 5, "done": 2, "missing": [1, 2, 4], "bytes": 0,
        }  # fmt: skip
        assert found["holder"]["command"]
        assert list(found["nodes"]) == ["/rollouts"]
        assert found["nodes"]["/rollouts"]["sizes"]["rollout"] == 24
        assert found["nodes"]["/rollouts"]["attributes"]["sampled_by"] == ["m"]
        events = [line["event"] for line in found["history"]]
        assert events == ["written", "probe started"]


def test_info_of_a_finished_store(tmp_path):
    path = tmp_path / "a.zarr"
    driver.run(path, number=8, mean=50)
    found = info(Archive(path, mode="r"))
    assert list(found["nodes"]) == ["/rollouts", "/probes/opposed", "/stats/shifts"]
    probe = found["probes"]["opposed"]
    assert (probe["state"], probe["blocks"], probe["done"], probe["missing"]) == (
        "finished", 2, 2, [],
    )  # fmt: skip
    assert found["holder"] is None
    parts = sum(node["bytes"] for node in found["nodes"].values())
    assert 0 < probe["bytes"] < parts < found["bytes"]
    assert found["nodes"]["/probes/opposed"]["variables"].count("logp") == 1


def test_info_of_an_empty_store(tmp_path):
    Archive(tmp_path / "a.zarr")
    found = info(Archive(tmp_path / "a.zarr", mode="r"))
    assert (found["nodes"], found["probes"], found["history"]) == ({}, {}, [])
    with xr.open_datatree(tmp_path / "a.zarr") as tree:
        assert tree.groups == ("/",)
