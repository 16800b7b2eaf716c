"""`format0.zarr` was written by the code of commit c443c3f, as format 0; see format0.md."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from tests.store import driver
from tests.store.compare import equal_stores
from tests.store.test_archive import state
from tokensense.errors import StoreError
from tokensense.schema import PROBE, ROLLOUTS
from tokensense.store import Archive
from tokensense.store.health import check, repair
from tokensense.store.migration import migrate
from tokensense.store.tree import METADATA

FIXTURE = Path(__file__).parent / "format0.zarr"
LATER = {"solution", "wrong_token", "sampled_logp"}


@pytest.fixture
def path(tmp_path):
    return shutil.copytree(FIXTURE, tmp_path / "old.zarr")


def arrays(path):
    with xr.open_datatree(path) as tree:
        return {group: tree[group].to_dataset().load() for group in tree.groups}


def test_the_arrays_of_a_migrated_store_are_those_of_before(path):
    for mode in ("a", "r"):
        before = state(path)
        with pytest.raises(StoreError, match=r"has format 0\. Run `tokensense info .* --repair`"):
            Archive(path, mode=mode)
        assert state(path) == before
    old = arrays(path)
    assert [finding.remedy for finding in check(path)] == ["repair", "repair"]
    done = repair(path)
    assert "format 0 became format 1" in done
    assert "/rollouts: added solution, wrong_token, sampled_logp (not known)" in done
    assert check(path) == []
    new = arrays(path)
    assert set(new["/rollouts"]) - set(old["/rollouts"]) == LATER
    assert set(new["/rollouts"]) == set(ROLLOUTS)
    for group, dataset in old.items():
        for name in dataset.variables:
            assert new[group][name].dtype == dataset[name].dtype
            np.testing.assert_array_equal(new[group][name].values, dataset[name].values)
    assert set(new["/rollouts"]["wrong_token"].values) == {-1}
    assert np.isnan(new["/rollouts"]["sampled_logp"].values).all()
    # They are also the numbers that the fixture was made of.
    frozen = Archive(path, mode="r").rollouts()
    for name in PROBE:
        if name != "comparability":  # its enumeration has grown since
            whole = driver.block(frozen, 0, 8)[name]
            np.testing.assert_array_equal(new["/probes/opposed"][name].values, whole)


def test_probes_finished_or_not_go_on_after_a_migration(path):
    repair(path)
    with Archive(path) as archive:
        assert archive.nodes() == ["/rollouts", "/probes/opposed", "/stats/shifts"]
        assert archive.is_finished("opposed")
        blocks = driver.ranges(8, 3)
        assert archive.start_probe("opposed", driver.header(), blocks) == []
        assert archive.start_probe("neutral", driver.header(), blocks) == [0, 2]
        frozen = archive.rollouts()
        for index in (0, 2):
            archive.write_block("neutral", index, driver.block(frozen, *blocks[index]))
        archive.assemble_probe("neutral", coords=driver.coords())
    assert check(path) == []


class FaultError(Exception):
    pass


@pytest.mark.parametrize(
    "step",
    ["migrate:digests", "publish:built", "publish:ready", "publish:hidden", "publish:moved",
     "publish:placed", "publish:consolidated"],
)  # fmt: skip
def test_a_migration_that_is_killed_is_done_again(path, tmp_path, step):
    def fault(event):
        if event == step:
            raise FaultError

    other = shutil.copytree(path, tmp_path / "other.zarr")
    with pytest.raises(FaultError):
        migrate(path, on_event=fault)
    repair(path)
    repair(other)
    assert check(path) == []
    assert equal_stores(path, other) == []
    assert repair(path) == []


def test_stores_that_say_1_and_lack_what_came_later_are_read_and_completed(path, tmp_path):
    text = (path / METADATA).read_text()
    (path / METADATA).write_text(text.replace('"format_version": 0', '"format_version": 1'))
    assert "wrong_token" not in Archive(path, mode="r").rollouts()
    (finding,) = check(path)
    assert "lacks solution, wrong_token, sampled_logp" in finding.what
    assert repair(path) == ["/rollouts: added solution, wrong_token, sampled_logp (not known)"]
    migrated = shutil.copytree(FIXTURE, tmp_path / "migrated.zarr")
    repair(migrated)
    assert equal_stores(path, migrated) == []
