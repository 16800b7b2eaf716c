import dask.array as da
import numpy as np
import pytest
import xarray as xr

from tokensense.errors import SchemaError
from tokensense.stats.grouped import mean_by

# Not in order, and not from 0 on: places in the table of flags are not the flags.
FLAGS = {"flag_values": [7, 2, 5], "flag_meanings": "seven two five"}


def flags(values):
    return xr.DataArray(np.array(values, np.int8), dims="token", name="kind", attrs=FLAGS)


def shift(values):
    return xr.DataArray(
        np.array(values, np.float32),
        dims=("condition", "token"),
        coords={"condition": ["pos", "neg"], "token_id": ("token", np.arange(4))},
        attrs={"units": "nats"},
    )


@pytest.mark.parametrize("chunks", [None, (1, 3), (2, 1)])
def test_means_by_hand(chunks):
    values = shift([[1.0, 2.0, np.nan, 5.0], [-1.0, 0.0, 3.0, -5.0]])
    kind = flags([2, 2, 7, 2])
    if chunks:
        values = values.copy(data=da.from_array(values.values, chunks=chunks))
        kind = kind.copy(data=da.from_array(kind.values, chunks=2))
    found = mean_by(values, kind)
    assert found["kind"].values.tolist() == ["seven", "two", "five"]
    assert found["condition"].values.tolist() == ["pos", "neg"]
    np.testing.assert_array_equal(
        found["mean"].values, [[np.nan, 8 / 3, np.nan], [3.0, -2.0, np.nan]]
    )
    assert found["count"].values.tolist() == [[0, 3, 0], [1, 3, 0]]
    assert found["mean"].dims == ("condition", "kind")
    assert found["mean"].attrs["units"] == "nats"


def test_one_row_of_values_and_no_tokens():
    one = mean_by(shift([[1, 2, 3, 4], [0, 0, 0, 0]]).isel(condition=0), flags([7, 7, 5, 5]))
    assert one["mean"].dims == ("kind",)
    assert one["mean"].values[[0, 2]].tolist() == [1.5, 3.5]
    none = mean_by(xr.DataArray(np.zeros((2, 0)), dims=("condition", "token")), flags([]))
    assert none["count"].values.tolist() == [[0, 0, 0]] * 2


def test_what_cannot_be_grouped_is_refused():
    values = shift(np.zeros((2, 4)))
    with pytest.raises(SchemaError, match=r"needs values of \[7, 2, 5\]; it has 3"):
        mean_by(values, flags([7, 2, 3, 5]))
    with pytest.raises(SchemaError, match=r"needs integers with `flag_values`"):
        mean_by(values, flags([7, 2, 5, 5]).drop_attrs())
    with pytest.raises(SchemaError, match=r"over the 3 tokens of `kind`; it has .*'token': 4"):
        mean_by(values, flags([7, 2, 5]))
    with pytest.raises(SchemaError, match=r"needs dims \(condition, token\)"):
        mean_by(values.T, flags([7, 2, 5, 5]))
