import numpy as np
import pytest
import xarray as xr

from tests.store import driver
from tests.store.test_probing import plan_of
from tokensense.schema import PROBE
from tokensense.store import assembly, layout


@pytest.fixture(scope="module")
def frozen():
    return driver.rollouts(number=10, mean=20).assign_attrs(digest="d")


@pytest.mark.parametrize(
    ("size", "chunk", "shard", "rows"),
    [(1, 16, 32, 3), (3, 8, 32, 1), (3, 16, 16, 2), (3, 64, 64, 16), (10, 16, 32, 3)],
)
def test_assembled_arrays_equal_the_blocks_end_to_end(
    tmp_path, monkeypatch, frozen, chunk, shard, rows, size
):
    # Small chunks and shards, so that blocks begin and end within them in every way.
    for name, value in (("SMALL", 8), ("CHUNK", chunk), ("SHARD", shard)):
        monkeypatch.setattr(layout, name, value)
    monkeypatch.setattr(layout, "CONDITIONS_PER_SHARD", rows)
    plan = plan_of(frozen, size=size)
    files = []
    for index, (start, stop) in enumerate(plan.blocks):
        files.append(tmp_path / f"{index}.npz")
        np.savez(files[-1], **driver.block(frozen, start, stop))
    shards = []
    frame = plan.frame(driver.coords(), {}, rollouts=frozen)
    assembly.assemble(
        tmp_path / "a", plan, files, frame=frame, node=tmp_path, on_event=shards.append
    )
    whole = driver.block(frozen, 0, 10)
    with xr.open_dataset(tmp_path / "a", engine="zarr", consolidated=False) as found:
        for name, variable in PROBE.items():
            assert found[name].dims == variable.dims
            assert found[name].dtype == variable.dtype
            np.testing.assert_array_equal(found[name].values, whole[name])
            assert found[name].attrs["units"] == variable.units
    tokens = int(frozen["length"].sum())
    per_statistic = -(-tokens // min(shard, -(-tokens // chunk) * chunk)) * -(-4 // rows)
    assert shards.count("assemble:shard") >= 4 * per_statistic
    assert len(list((tmp_path / "a" / "logp" / "c").rglob("*"))) >= per_statistic
