import numpy as np
import pytest

from tokensense.errors import StoreError
from tokensense.store import blocks

ARRAYS = {"b": np.arange(6, dtype=np.int32).reshape(2, 3), "a": np.array([np.nan, 0.5], np.float32)}


def silent(event):
    pass


def test_a_block_comes_back_and_needs_no_pickle(tmp_path):
    path = blocks.write(tmp_path, 7, ARRAYS, on_event=silent)
    assert blocks.done(tmp_path) == {7: path}
    assert blocks.is_intact(path)
    found = blocks.read(path)
    assert {name: array.dtype for name, array in found.items()} == {"a": "float32", "b": "int32"}
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)
    with np.load(path, allow_pickle=False) as plain:
        assert sorted(plain) == ["a", "b"]


def test_events_come_in_the_order_of_a_safe_write(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "PIECE", 300)
    seen = []

    def on_event(event):
        # The done-mark is there only after everything else.
        seen.append((event, len(blocks.done(tmp_path))))

    size = blocks.write(tmp_path, 0, ARRAYS, on_event=on_event).stat().st_size
    pieces = -(-size // 300)
    assert pieces > 1
    assert seen == [
        ("block:begin", 0), ("block:data", 0), *[("block:piece", 0)] * pieces,
        ("block:fsync", 0), ("block:rename", 0), ("block:done", 1),
    ]  # fmt: skip


@pytest.mark.parametrize("step", ["block:data", "block:piece", "block:fsync", "block:rename"])
def test_an_exception_leaves_nothing(tmp_path, step):
    def on_event(event):
        if event == step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        blocks.write(tmp_path, 0, ARRAYS, on_event=on_event)
    assert list(tmp_path.iterdir()) == []


def test_the_same_block_twice_is_one_file_and_another_is_refused(tmp_path):
    path = blocks.write(tmp_path, 0, ARRAYS, on_event=silent)
    assert blocks.write(tmp_path, 0, dict(reversed(ARRAYS.items())), on_event=silent) == path
    changed = {**ARRAYS, "a": np.array([np.nan, 0.25], np.float32)}
    with pytest.raises(StoreError, match=r"block 0 needs to come out the same each time"):
        blocks.write(tmp_path, 0, changed, on_event=silent)
    assert list(tmp_path.iterdir()) == [path]


def cut(content):
    return content[: len(content) // 2]


def flip(content):
    # One bit of the data of `a`, 0.5 as float32.
    place = content.index(np.float32(0.5).tobytes())
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize("damage", [cut, flip, lambda content: b"", lambda content: content + b"x"])
def test_damage_is_found_and_cleaned(tmp_path, damage):
    good = blocks.write(tmp_path, 0, ARRAYS, on_event=silent)
    bad = blocks.write(tmp_path, 1, ARRAYS, on_event=silent)
    bad.write_bytes(damage(bad.read_bytes()))
    (tmp_path / "000002.1.abcd.part").write_bytes(b"x")
    assert blocks.is_intact(good)
    assert not blocks.is_intact(bad)
    assert blocks.clean(tmp_path) == [1]
    assert list(tmp_path.iterdir()) == [good]


@pytest.mark.parametrize("damage", [cut, flip, lambda content: b""])
def test_reading_a_damaged_block_raises(tmp_path, damage):
    path = blocks.write(tmp_path, 0, ARRAYS, on_event=silent)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(StoreError, match=r"a block needs a whole file; reading .* gave"):
        blocks.read(path)


def test_parts_of_an_array_are_read_where_they_are_wanted(tmp_path):
    arrays = {
        "empty": np.zeros((3, 0), np.float32),
        "fortran": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        "a_longer_name_than_the_others": np.arange(-5, 5, dtype=np.int8).reshape(2, 5),
    }
    path = blocks.write(tmp_path, 0, arrays, on_event=silent)
    for name, array in arrays.items():
        found = blocks.member(path, name)
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        for row in range(array.shape[0]):
            for column in range(array.shape[1]):
                wide = np.full((array.shape[0] - row, array.shape[1]), 99, array.dtype)
                target = wide[:, : array.shape[1] - column]  # not contiguous, as in a shard
                found.read_into(target, row=row, column=column)
                np.testing.assert_array_equal(target, array[row:, column:])
                assert (wide[:, array.shape[1] - column :] == 99).all()


@pytest.mark.parametrize("damage", [cut, lambda content: b""])
def test_parts_of_what_is_no_block_raise(tmp_path, damage):
    path = blocks.write(tmp_path, 0, ARRAYS, on_event=silent)
    with pytest.raises(StoreError, match=r"no item named 'c\.npy'"):
        blocks.member(path, "c")
    found = blocks.member(path, "a")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(StoreError, match=r"a block needs a whole file; reading .* gave"):
        blocks.member(path, "a")
    path.write_bytes(b"")
    with pytest.raises(StoreError, match="ends too early"):
        found._replace(shape=(1, 1)).read_into(np.empty((1, 1), found.dtype), row=0, column=0)


def test_reading_a_block_that_is_gone_raises(tmp_path):
    with pytest.raises(StoreError, match="gave"):
        blocks.read(tmp_path / "absent.npz")


def test_foreign_files_are_no_blocks(tmp_path):
    for name in ("plan.json", "000001.npz", "x-" + "0" * 64 + ".npz"):
        (tmp_path / name).touch()
    assert blocks.done(tmp_path) == {}
    assert blocks.done(tmp_path / "absent") == {}
    assert not blocks.is_intact(tmp_path / ("000001-" + "0" * 64 + ".npz"))
