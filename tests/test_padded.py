import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from tokensense.errors import SchemaError
from tokensense.padded import to_flat, to_padded


def flat(length, seed=0):
    tokens = int(sum(length))
    rng = np.random.default_rng(seed)
    return xr.Dataset(
        {
            "shift": (("condition", "token"), rng.normal(size=(2, tokens)).astype(np.float32)),
            "length": ("rollout", np.array(length, np.int32)),
        },
        coords={
            "token_id": ("token", rng.integers(0, 151644, tokens).astype(np.int32)),
            "text": ("token", np.array(["a"] * tokens)),
        },
    )


def test_tokens_stand_at_the_side_that_is_not_padded():
    tokens = flat([2, 0, 3]).assign_coords(token_id=("token", np.arange(1, 6, dtype=np.int32)))
    right = to_padded(tokens, ["token_id"], pad_id=9)
    assert right.values["token_id"].tolist() == [[1, 2, 9], [9, 9, 9], [3, 4, 5]]
    assert right.mask.tolist() == [[True, True, False], [False] * 3, [True] * 3]
    left = to_padded(tokens, ["token_id"], side="left")
    assert left.values["token_id"].tolist() == [[0, 1, 2], [0, 0, 0], [3, 4, 5]]
    assert left.mask.tolist() == [[False, True, True], [False] * 3, [True] * 3]


@given(st.lists(st.integers(0, 5), max_size=6), st.sampled_from(["left", "right"]))
def test_flat_again_is_what_it_was(length, side):
    tokens = flat(length)
    found = to_padded(tokens, ["shift", "token_id"], side=side)
    assert found.mask.shape == (len(length), max(length, default=0))
    assert found.mask.dtype == torch.bool
    assert found.mask.sum(dim=1).tolist() == length
    assert found.values["shift"].shape == (2, *found.mask.shape)
    assert found.values["shift"].dtype == torch.float32
    assert found.values["token_id"].dtype == torch.int32
    for name, array in to_flat(found.values, found.mask).items():
        np.testing.assert_array_equal(array, tokens[name].values)
    # A masked sum is right, and nothing stands where no token is.
    total = (found.values["shift"] * found.mask).sum()
    np.testing.assert_allclose(total, tokens["shift"].values.sum(), rtol=1e-4, atol=1e-5)
    assert not found.values["shift"][:, ~found.mask].any()


def test_a_token_that_was_not_scored_stays_nan_and_the_padding_does_not():
    tokens = flat([1, 2])
    tokens["shift"][0, 0] = np.nan
    found = to_padded(tokens, ["shift"])
    assert torch.isnan(found.values["shift"]).sum() == 1
    assert torch.isnan(found.values["shift"][0, 0, 0])


def test_what_cannot_be_padded_is_refused():
    tokens = flat([1, 2])
    with pytest.raises(SchemaError, match=r"\['entropy'\] are not among"):
        to_padded(tokens, ["entropy"])
    with pytest.raises(SchemaError, match="`text` needs numbers over `token`"):
        to_padded(tokens, ["text"])
    with pytest.raises(SchemaError, match="`length` needs numbers over `token` in its last dim"):
        to_padded(tokens, ["length"])
    with pytest.raises(SchemaError, match="`side` needs one of"):
        to_padded(tokens, ["shift"], side="both")
