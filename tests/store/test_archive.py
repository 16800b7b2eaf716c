import hashlib
import json
import os

import numpy as np
import pytest
import xarray as xr

from tests.store import driver
from tests.store.compare import equal_stores
from tokensense.errors import LockError, SchemaError, StoreError
from tokensense.schema import PROBE
from tokensense.store import Archive
from tokensense.store.tree import WORK

NUMBER, SIZE = 12, 5
BLOCKS = driver.ranges(NUMBER, SIZE)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "study.zarr"


@pytest.fixture(scope="module")
def frozen():
    return driver.rollouts(number=NUMBER, mean=40)


@pytest.fixture
def started(path, frozen):
    """An archive with rollouts and a probe that was started."""
    with Archive(path) as archive:
        archive.write_rollouts(frozen)
        assert archive.start_probe("opposed", driver.header(), BLOCKS) == [0, 1, 2]
        yield archive


def fill(archive, frozen, *, only=(0, 1, 2)):
    for index in only:
        archive.write_block("opposed", index, driver.block(frozen, *BLOCKS[index]))


def state(path):
    """Everything on disk but the lock and the history."""
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name not in ("lock", "holder.json", "history.jsonl")
    }


def test_plain_xarray_reads_a_store_while_it_grows(started, path, frozen):
    # Warnings are errors here: a running store opens as quietly as a finished one.
    with xr.open_datatree(path) as tree:
        assert tree.groups == ("/", "/rollouts")
    fill(started, frozen)
    with xr.open_datatree(path) as tree:
        assert tree.groups == ("/", "/rollouts")
    started.assemble_probe("opposed", coords=driver.coords(), attrs={"scored_by": "m"})
    started.write_node("stats/shifts", xr.Dataset({"a": ("kind", [1.0])}))
    with xr.open_datatree(path) as tree:
        assert [group for group in tree.groups if not tree[group].variables] == [
            "/", "/probes", "/stats",
        ]  # fmt: skip
        assert tree.attrs["format_version"] == 1
        probe = tree["probes/opposed"].to_dataset().load()
    whole = driver.block(frozen, 0, NUMBER)
    for name in PROBE:
        np.testing.assert_array_equal(probe[name].values, whole[name])
    assert json.loads(probe.attrs["header"]) == driver.header()
    assert probe["condition_name"].attrs["flag_meanings"] == "pos neg placebo_one placebo_two"
    assert probe["length"].attrs["sample_dimension"] == "token"
    assert int(probe["length"].sum()) == probe.sizes["token"]


def test_order_and_number_of_processes_leave_no_trace(tmp_path, frozen):
    paths = tmp_path / "one.zarr", tmp_path / "two.zarr"
    for path in paths:
        with Archive(path) as archive:
            archive.write_rollouts(frozen)
            archive.start_probe("opposed", driver.header(), BLOCKS)
            if path == paths[0]:
                fill(archive, frozen)
            else:
                # As other ranks of one run would: last block first, no lock of their own.
                for index in (2, 0, 1):
                    fill(Archive(path, mode="blocks"), frozen, only=[index])
            archive.assemble_probe("opposed", coords=driver.coords())
    assert equal_stores(*paths) == []


def test_a_probe_goes_on_where_it_was(started, path, frozen):
    fill(started, frozen, only=[1])
    assert started.done_blocks("opposed") == {1}
    started.close()
    with Archive(path) as archive:
        assert archive.start_probe("opposed", driver.header(), BLOCKS) == [0, 2]
        # A second start of the same archive, as after Ctrl-C in a notebook.
        assert archive.start_probe("opposed", driver.header(), BLOCKS) == [0, 2]
        fill(archive, frozen, only=[0, 2])
        for name, array in archive.read_block("opposed", 1).items():
            np.testing.assert_array_equal(array, driver.block(frozen, *BLOCKS[1])[name])
        archive.assemble_probe("opposed", coords=driver.coords())
        assert not (path / WORK / "probes" / "opposed").exists()
        # Finished: nothing left to do, whatever the blocks.
        assert archive.is_finished("opposed")
        assert archive.start_probe("opposed", driver.header(), [(0, NUMBER)]) == []
        assert archive.done_blocks("opposed") == {0, 1, 2}
        before = state(path)
        archive.assemble_probe("opposed", coords=driver.coords())
        assert state(path) == before
        # All was given back: another archive may write.
        Archive(path).write_node("stats/x", xr.Dataset({"a": 1}))
        with pytest.raises(StoreError, match="blocks of probe 'opposed' need a probe that was st"):
            fill(archive, frozen, only=[0])


@pytest.mark.parametrize("finished", [False, True])
def test_another_header_is_refused_and_changes_nothing(started, path, frozen, finished):
    fill(started, frozen)
    if finished:
        started.assemble_probe("opposed", coords=driver.coords())
    before = state(path)
    changed = driver.header(scoring={"temperature": 0.7, "tokens_per_row": 4096})
    changed["conditions"][2]["text"] = "It is another."
    message = (
        r"conditions.2.text is 'It is placebo_one.' in the store, 'It is another.' now; "
        r"scoring.temperature is 1.0 in the store, 0.7 now"
    )
    with pytest.raises(StoreError, match=message):
        started.start_probe("opposed", changed, BLOCKS)
    assert state(path) == before
    if not finished:
        with pytest.raises(StoreError, match=r"blocks.0.1 is 5 in the store, 6 now"):
            started.start_probe("opposed", driver.header(), [(0, 6), (6, 10), (10, 12)])
        assert state(path) == before


@pytest.mark.parametrize("digest", ["policy_digest", "tokenizer_digest", "template_digest"])
@pytest.mark.parametrize("finished", [False, True])
def test_another_policy_is_refused_and_changes_nothing(started, path, frozen, digest, finished):
    if finished:
        fill(started, frozen)
        started.assemble_probe("opposed", coords=driver.coords())
    before = state(path)
    with pytest.raises(StoreError, match=rf"one policy, .*{digest} is .* in the store, 'x' now"):
        started.start_probe("placebo", driver.header(**{digest: "x"}), BLOCKS)
    assert state(path) == before
    assert started.start_probe("placebo", driver.header(), BLOCKS) == [0, 1, 2]


def test_rollouts_of_another_tokenizer_are_refused(path, frozen):
    with Archive(path) as archive:
        archive.write_rollouts(frozen)
        with pytest.raises(StoreError, match=r"compared with /rollouts, .*tokenizer_digest is 't'"):
            archive.start_probe("opposed", driver.header(tokenizer_digest="x"), BLOCKS)


def test_rollouts_are_fixed(started, path, frozen):
    before = state(path)
    started.write_rollouts(frozen)
    reward = frozen["reward"].copy()
    reward[0] = 0.25
    with pytest.raises(StoreError, match=r"new ones differ: `reward` differs in 1 of 12 values"):
        started.write_rollouts(frozen.assign(reward=reward))
    with pytest.raises(StoreError, match=r"sampled_by.0 is 'm' in the store, 'n' now"):
        started.write_rollouts(frozen.assign_attrs(sampled_by=["n"]))
    with pytest.raises(SchemaError, match="`kind` is missing"):
        started.write_rollouts(frozen.drop_vars("kind"))
    assert state(path) == before
    found = started.rollouts()
    xr.testing.assert_equal(found, frozen)
    assert found.attrs["sampled_by"] == ["m"]


@pytest.mark.parametrize("damage", ["cut", "bit"])
def test_a_damaged_block_is_computed_again(started, path, frozen, damage):
    fill(started, frozen)
    (block,) = (path / WORK / "probes" / "opposed").glob("000001-*.npz")
    content = bytearray(block.read_bytes())
    if damage == "bit":
        content[len(content) // 2] ^= 1
    block.write_bytes(content[: len(content) // 2] if damage == "cut" else content)
    with pytest.raises(StoreError, match=r"block needs a whole file"):
        started.read_block("opposed", 1)
    with pytest.raises(StoreError, match=r"needs all 3 blocks; missing are \[1\], of them damaged"):
        started.assemble_probe("opposed", coords=driver.coords())
    assert not started.is_finished("opposed")
    assert started.start_probe("opposed", driver.header(), BLOCKS) == [1]
    fill(started, frozen, only=[1])
    started.assemble_probe("opposed", coords=driver.coords())
    whole = driver.block(frozen, 0, NUMBER)
    np.testing.assert_array_equal(started.read("probes/opposed")["logp"].values, whole["logp"])


def test_a_start_finds_damaged_blocks_and_clears_strays(started, path, frozen):
    fill(started, frozen)
    started.close()
    blocks = path / WORK / "probes" / "opposed"
    (block,) = blocks.glob("000002-*.npz")
    block.write_bytes(block.read_bytes()[:-1])
    (blocks / "000001.7.abcd.part").write_bytes(b"x")
    with Archive(path) as archive:
        assert archive.start_probe("opposed", driver.header(), BLOCKS) == [2]
    assert not list(path.rglob("*.part"))


def test_an_unfinished_probe_is_not_read_as_zeros(started, frozen):
    fill(started, frozen, only=[2])
    with pytest.raises(StoreError, match=r"needs a finished probe; 1 of 3 blocks are done"):
        started.read("/probes/opposed")
    with pytest.raises(StoreError, match=r"in .*; it has: /rollouts. Make it first"):
        started.read("/probes/placebo")
    with pytest.raises(StoreError, match=r"block 0 .* needs to be done; done are \[2\]"):
        started.read_block("opposed", 0)
    with pytest.raises(StoreError, match=r"missing are \[0, 1\]\. Run the probe again"):
        started.assemble_probe("opposed", coords=driver.coords())
    with pytest.raises(StoreError, match="need a probe that was started"):
        started.write_block("placebo", 0, {})
    with pytest.raises(SchemaError, match="`logp` is missing"):
        started.write_block("opposed", 0, {})


def test_a_failed_assembly_keeps_blocks_and_lock(started, frozen):
    fill(started, frozen)
    with pytest.raises(SchemaError, match="needs coordinate `condition`"):
        started.assemble_probe("opposed", coords={})
    with pytest.raises(LockError):
        Archive(started.path, timeout=0.0).write_node("stats/x", xr.Dataset({"a": 1}))
    started.assemble_probe("opposed", coords=driver.coords())
    assert started.done_blocks("opposed") == {0, 1, 2}


def test_no_rollouts_and_no_tokens(tmp_path):
    for number, mean in ((0, 5), (3, 0)):
        path = tmp_path / f"{number}.zarr"
        driver.run(path, number=number, mean=mean)
        with xr.open_datatree(path) as tree:
            tree.load()
            assert tree["probes/opposed"].sizes["token"] == 0
            assert tree["probes/opposed/comparability"].shape == (4, number)
            assert tree["rollouts/token_id"].dtype == np.int32


def test_any_node_comes_back_as_it_was_written(path):
    dataset = xr.Dataset(
        {
            "estimate": (("statistic", "part"), np.array([[1.0, np.nan]]), {"units": "nats"}),
            "n": ("part", np.array([3, 4], np.int16)),
            "testable": ("part", np.array([True, False])),
        },
        coords={"part": ["a b", ""], "statistic": np.array(["same_direction"], dtype=object)},
        attrs={"seed": 3},
    )
    with Archive(path) as archive:
        archive.write_node("/stats/shifts", dataset)
        found = archive.read("stats/shifts")
        assert found.attrs.pop("provenance")
        xr.testing.assert_equal(found, dataset)
        assert found["n"].dtype == np.int16
        assert found["testable"].dtype == bool
        assert found["estimate"].attrs == {"units": "nats"}
        assert found.attrs == {"seed": 3}
        archive.write_node("/stats/shifts", dataset.isel(part=[1]))
        assert archive.read("stats/shifts").sizes == {"statistic": 1, "part": 1}


@pytest.mark.parametrize(
    "node",
    ["rollouts", "probes/x", "stats", "stats/a/b", "rollouts/x", "stats/a b", "stats/.x", ""],
)
def test_nodes_have_two_plain_names(path, node):
    with pytest.raises(StoreError, match="a node needs a"):
        Archive(path).write_node(node, xr.Dataset())


def test_what_a_mode_does_not_allow(started, path, frozen):
    reading, scoring = Archive(path, mode="r"), Archive(path, mode="blocks")
    for archive in (reading, scoring):
        for write in (
            lambda archive: archive.write_rollouts(frozen),
            lambda archive: archive.write_node("stats/x", xr.Dataset()),
            lambda archive: archive.start_probe("opposed", driver.header(), BLOCKS),
            lambda archive: archive.assemble_probe("opposed", coords={}),
        ):
            with pytest.raises(StoreError, match="needs mode 'a'; this archive was opened with"):
                write(archive)
    with pytest.raises(StoreError, match="a block of probe 'opposed' needs mode 'a'"):
        fill(reading, frozen)
    fill(scoring, frozen, only=[0])
    assert reading.done_blocks("opposed") == {0}


def test_a_late_block_of_a_run_whose_first_process_died(started, path, frozen):
    late = Archive(path, mode="blocks")
    started.close()
    with Archive(path) as archive:  # the next run, with the same block in work
        archive.start_probe("opposed", driver.header(), BLOCKS)
        fill(late, frozen, only=[0])
        fill(archive, frozen)
        archive.assemble_probe("opposed", coords=driver.coords())
    before = state(path)
    with pytest.raises(StoreError, match="it was not, or it is finished"):
        fill(late, frozen, only=[1])
    assert state(path) == before


def test_paths_that_are_no_store(tmp_path):
    with pytest.raises(StoreError, match="absent does not exist"):
        Archive(tmp_path / "absent", mode="r")
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="file has none"):
        Archive(tmp_path / "file")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(StoreError, match="full has none"):
        Archive(tmp_path / "full")
    xr.Dataset().to_zarr(tmp_path / "foreign", zarr_format=3, consolidated=False)
    with pytest.raises(StoreError, match=r"needs attribute format_version; .* has None"):
        Archive(tmp_path / "foreign")
    (tmp_path / "parent").write_text("x")
    with pytest.raises(StoreError, match=r"writing the new store .* needs a writable folder"):
        Archive(tmp_path / "parent" / "store")
    # A folder that is there and empty, or where a writer was killed at its first step, is new.
    (tmp_path / "empty" / WORK).mkdir(parents=True)
    assert Archive(tmp_path / "empty").nodes() == []


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (2, "format 1; .* has format 2. Install a newer"),
        (0, "has format 0. Run `tokensense info .*zarr --repair`"),
    ],
)
def test_another_format_version_is_refused_politely(path, frozen, version, message):
    with Archive(path) as archive:
        archive.write_rollouts(frozen)
    text = (
        (path / "zarr.json")
        .read_text()
        .replace('"format_version": 1', f'"format_version": {version}')
    )
    (path / "zarr.json").write_text(text)
    before = state(path)
    for mode in ("a", "r"):
        with pytest.raises(StoreError, match=message):
            Archive(path, mode=mode)
    assert state(path) == before


def test_other_versions_of_packages_are_told(started, path, frozen):
    fill(started, frozen, only=[0])
    started.close()
    plan = path / WORK / "probes" / "opposed" / "plan.json"
    content = json.loads(plan.read_text())
    content["stamp"]["packages"]["numpy"] = "1.0"
    plan.write_text(json.dumps(content))
    with (
        Archive(path) as archive,
        pytest.warns(UserWarning, match=r"other versions .*numpy is '1.0' in the store"),
    ):
        archive.start_probe("opposed", driver.header(), BLOCKS)


def test_a_second_archive_of_this_process_is_told_so(started, path):
    with pytest.raises(LockError, match="this very process"):
        Archive(path, timeout=0.0).write_node("stats/x", xr.Dataset({"a": 1}))
    # Opening and reading need no lock.
    assert Archive(path).nodes() == ["/rollouts"]
    started.close()
    Archive(path).write_node("stats/x", xr.Dataset({"a": 1}))


def test_opening_finishes_what_a_killed_writer_had_committed(path):
    with Archive(path) as archive:
        archive.write_node("stats/x", xr.Dataset({"a": 1}))
        archive.write_node("stats/y", xr.Dataset({"a": 2}))
    (path / WORK / "ready").mkdir(exist_ok=True)
    os.rename(path / "stats" / "y", path / WORK / "ready" / "stats@y")  # noqa: PTH104
    holder = {"pid": 2**22 + 1, "host": os.uname().nodename, "boot": "", "command": "", "start": ""}
    (path / WORK / "holder.json").write_text(json.dumps(holder))
    assert Archive(path, mode="r").nodes() == ["/stats/x"]
    assert Archive(path).nodes() == ["/stats/x", "/stats/y"]


def test_repr_names_path_and_mode(path):
    assert repr(Archive(path)) == f"Archive({str(path)!r}, mode='a')"
