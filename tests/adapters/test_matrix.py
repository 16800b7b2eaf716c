"""Padded batches and flat arrays get the same credit."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tokensense.adapters.matrix import credit_matrix
from tokensense.credit import CATALOGUE
from tokensense.credit.evidence import Evidence
from tokensense.errors import SchemaError


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=5),
    left=st.booleans(),
    tools=st.booleans(),
    seed=st.integers(0, 99),
)
def test_a_padded_batch_gets_the_credit_of_the_flat_one(lengths, left, tools, seed):
    rng = np.random.default_rng(seed)
    width = max(*lengths, 1)
    mask = torch.zeros(len(lengths), width, dtype=torch.bool)
    for row, length in enumerate(lengths):
        mask[row, width - length if left else 0 : None if left else length] = True
    shifts = {name: torch.from_numpy(rng.normal(size=mask.shape)) for name in ("z_pos", "z_neg")}
    written = torch.from_numpy(rng.random(mask.shape) < 0.7) if tools else None
    advantage = torch.from_numpy(rng.normal(size=len(lengths)))
    found = credit_matrix(CATALOGUE["cscr"], advantage, mask, written=written, evidence=shifts)
    flat = CATALOGUE["cscr"].assign(
        Evidence(
            length=np.array(lengths),
            advantage=advantage.numpy(),
            mask=None if written is None else written[mask].numpy(),
            **{name: values[mask].numpy() for name, values in shifts.items()},
        )
    )
    np.testing.assert_allclose(found[mask], flat, rtol=1e-12, atol=1e-15)
    assert (found[~mask] == 0).all()


def test_uniform_gives_each_token_its_advantage_to_the_last_bit():
    mask = torch.tensor([[True, True, False], [True, False, False]])
    advantage = torch.tensor([0.1, -0.7])
    found = credit_matrix(CATALOGUE["uniform"], advantage, mask)
    assert torch.equal(found, advantage[:, None] * mask)


def test_shapes_that_disagree_are_refused():
    mask = torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(SchemaError, match="needs advantages"):
        credit_matrix(CATALOGUE["uniform"], torch.zeros(3), mask)
    with pytest.raises(SchemaError, match="evidence of the batch's shape"):
        credit_matrix(
            CATALOGUE["cscr"], torch.zeros(2), mask, evidence={"z_pos": torch.zeros(2, 4)}
        )
