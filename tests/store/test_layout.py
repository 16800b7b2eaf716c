import math

import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given
from hypothesis import strategies as st

from tests.store import driver
from tokensense.errors import SchemaError
from tokensense.schema import ROLLOUTS, Finish
from tokensense.store import guard, layout


def test_grid_of_small_and_large_arrays():
    # Up to 2^20 elements: one chunk. Above: a chunk is one condition's tokens, 2^18 at most.
    assert layout.grid(()) == ((), None)
    assert layout.grid((0,)) == ((1,), None)
    assert layout.grid((36, 20_000)) == ((36, 20_000), None)
    assert layout.grid((36, 80_736)) == ((1, 80_736), (16, 80_736))
    assert layout.grid((6, 10_000_000)) == ((1, 2**18), (6, 2**20))
    assert layout.grid((200, 300_000)) == ((1, 2**18), (16, 2**19))
    assert layout.grid((5_000_000,)) == ((2**18,), (2**20,))
    assert layout.grid((3, 40, 2**18)) == ((1, 1, 2**18), (1, 16, 2**18))


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=3))
def test_shards_hold_whole_chunks_and_stay_small(shape):
    chunks, shards = layout.grid(shape)
    assert len(chunks) == len(shape)
    if shards is None:
        assert chunks == tuple(max(1, size) for size in shape)
        assert math.prod(chunks) <= 2**20
    else:
        assert all(shard % chunk == 0 for shard, chunk in zip(shards, chunks, strict=True))
        assert math.prod(shards) <= 16 * 2**20


def test_ids_and_floats_come_back_as_they_went_in(tmp_path):
    dataset = guard.conform(driver.rollouts(), ROLLOUTS, what="/rollouts")
    layout.write_dataset(dataset, tmp_path / "a")
    with xr.open_dataset(tmp_path / "a", engine="zarr", consolidated=False) as found:
        assert found["token_id"].dtype == np.int32
        assert set(np.unique(found["token_id"])) == {0, 7, 151643}
        assert np.isnan(found["reward"]).sum() == 8
        xr.testing.assert_identical(found, dataset)
        assert all("_FillValue" not in v.attrs | v.encoding for v in found.variables.values())
    assert math.isnan(zarr.open_array(tmp_path / "a" / "reward", mode="r").fill_value)
    assert found["length"].attrs == {
        "units": "1",
        "description": "response tokens of the rollout",
        "sample_dimension": "token",
    }
    assert found["finish"].attrs["flag_values"] == [int(member) for member in Finish]
    assert found["finish"].attrs["flag_meanings"].split() == [m.name.lower() for m in Finish]


def test_a_damaged_chunk_raises_and_never_decodes(tmp_path):
    layout.write_dataset(xr.Dataset({"a": ("x", np.arange(100.0))}), tmp_path / "a")
    (chunk,) = (path for path in (tmp_path / "a" / "a" / "c").rglob("*") if path.is_file())
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 1
    chunk.write_bytes(content)
    with (
        xr.open_dataset(tmp_path / "a", engine="zarr", consolidated=False) as found,
        pytest.raises(ValueError, match="checksum"),
    ):
        found["a"].load()


def test_attributes_become_plain_json():
    attrs = {"a": np.float32(0.5), "b": (1, 2), "c": np.array(["x"]), "d": True, "e": ["y"]}
    assert layout.plain_attributes(attrs, what="it") == {
        "a": 0.5, "b": [1, 2], "c": ["x"], "d": True, "e": ["y"],
    }  # fmt: skip


@pytest.mark.parametrize("value", [math.nan, -math.inf, None, {"a": 1}, [math.nan], b"x"])
def test_attributes_that_json_cannot_hold_are_refused(value):
    with pytest.raises(SchemaError, match=r"attribute `it: a` needs text, finite numbers or lists"):
        layout.plain_attributes({"a": value}, what="it")


# NUL at the end is what NumPy's fixed-width strings lose on their own, stored or not.
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5)


@given(st.lists(TEXTS, max_size=8), st.sampled_from(["str", "object"]))
def test_texts_survive_as_flags(names, kind):
    values = np.array(names, dtype=np.str_ if kind == "str" else object)
    dataset = xr.Dataset({"v": ("x", np.arange(len(names)))}, coords={"name": ("x", values)})
    stored = layout.encode_texts(dataset, what="it")
    assert stored["name"].dtype == np.int32
    assert len(stored["name"].attrs["flag_meanings"].split()) == len(set(names))
    assert len(set(stored["name"].attrs["flag_meanings"].split())) == len(set(names))
    found = layout.decode_texts(stored)
    assert found["name"].values.tolist() == names
    assert "name" in found.coords
    assert set(found["name"].attrs) == {"description"}


def test_what_cannot_be_stored_portably_is_refused():
    for values, message in (
        (np.array([1 + 2j]), "complex128"),
        (np.array([{}], dtype=object), "object"),
        (np.array(["2020-01-01"], dtype="datetime64[ns]"), r"datetime64\[ns\]"),
    ):
        with pytest.raises(SchemaError, match=f"needs numbers, booleans or text.*{message}"):
            layout.encode_texts(xr.Dataset({"a": ("x", values)}), what="it")
    with pytest.raises(SchemaError, match="'seconds' is read back as a time span"):
        layout.encode_texts(xr.Dataset({"a": ("x", [1.0], {"units": "seconds"})}), what="it")


def test_flag_coordinate():
    found = layout.flag_coordinate(["pos", "neg", "pos"], description="side")
    assert found.dtype == np.int32
    assert found.values.tolist() == [0, 1, 0]
    assert found.attrs == {
        "units": "1", "description": "side", "flag_values": [0, 1], "flag_meanings": "pos neg",
    }  # fmt: skip
    with pytest.raises(SchemaError, match=r"\['a b', ''\] are not"):
        layout.flag_coordinate(["a b", "c", ""], description="side")


def test_differences_name_variables_values_and_attributes():
    one = xr.Dataset(
        {"a": ("x", [1.0, math.nan, 3.0], {"units": "1"}), "b": ("x", [1, 2, 3])},
        attrs={"source": "f", "provenance": "then"},
    )
    assert layout.differences(one, one.assign_attrs(provenance="now")) == []
    two = one.assign(a=("x", [1.0, math.nan, 4.0], {"units": "nats"}), c=1).drop_vars("b")
    assert layout.differences(one, two.assign_attrs(source="g")) == [
        "`a` differs in 1 of 3 values",
        "`a` units is '1' in the store, 'nats' now",
        "`b` is only in the store",
        "`c` is only in the new data",
        "source is 'f' in the store, 'g' now",
    ]
    assert layout.differences(one, one.assign(b=("x", np.array([1, 2, 3], np.int8)))) == [
        "`b` is int64 {'x': 3} in the store, int8 {'x': 3} now"
    ]


def test_attribute_differences_go_to_the_bottom():
    one = {"conditions": [{"text": "a"}, {"text": "b"}], "scoring": {"t": 1.0}, "x": [1], "y": 1}
    two = {"conditions": [{"text": "a"}, {"text": "c"}], "scoring": {"t": 0.7}, "x": [1, 2], "z": 1}
    assert layout.attribute_differences(one, two) == [
        "conditions.1.text is 'b' in the store, 'c' now",
        "scoring.t is 1.0 in the store, 0.7 now",
        "x is 1 items in the store, 2 items now",
        "y is only in the store",
        "z is not in the store",
    ]


def test_content_digest_sees_values_types_shapes_and_names():
    one = xr.Dataset({"a": ("x", np.array([0, 1], np.int32))})
    others = [
        xr.Dataset({"a": ("x", np.array([0, 2], np.int32))}),
        xr.Dataset({"a": ("x", np.array([0, 1], np.uint32))}),
        xr.Dataset({"b": ("x", np.array([0, 1], np.int32))}),
        xr.Dataset({"a": ("y", np.array([0, 1], np.int32))}),
        xr.Dataset({"a": (("x", "y"), np.array([[0, 1]], np.int32))}),
    ]
    digests = {layout.content_digest(dataset) for dataset in (one, *others)}
    assert len(digests) == 6
    assert layout.content_digest(one.assign_attrs(a=1)) in digests
