import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.reference.trainer import reference_loss
from tokensense.errors import SchemaError
from tokensense.trainer.config import Objective
from tokensense.trainer.loss import token_shares, token_terms


def cut(values, length):
    ends = np.cumsum(length)
    return [values[e - n : e] for e, n in zip(ends, length, strict=True)]


@given(
    length=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    normalizer=st.sampled_from(["token", "sequence", "constant"]),
    kl=st.sampled_from(["none", "k1", "k3"]),
    clamp=st.sampled_from([20.0, 0.1]),
    spread=st.sampled_from([0.0, 0.05, 0.8]),
    stale=st.booleans(),
    seed=st.integers(0, 99),
)
def test_loss_and_gradient_are_those_of_the_plain_reference(
    length, normalizer, kl, clamp, spread, stale, seed
):
    draw = torch.Generator().manual_seed(seed)
    total = sum(length)
    values = -torch.rand(total, generator=draw, dtype=torch.float64) - 0.2
    old = values + spread * torch.randn(total, generator=draw, dtype=torch.float64)
    reference = values + spread * torch.randn(total, generator=draw, dtype=torch.float64)
    credit = torch.randn(total, generator=draw, dtype=torch.float64)
    coefficient = 0.0 if kl == "none" else 0.3
    objective = Objective(normalizer, 0.2, 0.28, kl, coefficient, clamp)
    logp = values.clone().requires_grad_()
    terms = token_terms(
        logp,
        credit=credit,
        objective=objective,
        old=old if stale else None,
        reference=reference,
    )
    share = torch.from_numpy(token_shares(np.array(length), objective, most=7))
    loss = (share * terms.loss).sum()
    loss.backward()

    plain = [value.clone().requires_grad_() for value in values]
    truth = reference_loss(
        cut(plain, length),
        cut(credit.tolist(), length),
        olds=cut(old.tolist(), length) if stale else None,
        references=cut(reference.tolist(), length),
        normalizer=normalizer,
        clip_high=0.28,
        kl=kl,
        kl_coefficient=coefficient,
        kl_clamp=clamp,
        most=7,
    )
    # Tokens beyond a limit have no gradient at all.
    (truth + 0.0 * sum(plain)).backward()
    assert loss.item() == pytest.approx(truth.item(), rel=1e-6, abs=1e-7)
    gradient = [float(value.grad) for value in plain]
    assert logp.grad.tolist() == pytest.approx(gradient, rel=1e-6, abs=1e-9)


def test_shares_add_up_and_a_short_response_counts_as_much_as_its_normalizer_says():
    length = np.array([1, 3])
    shares = {
        name: token_shares(length, Objective(name), most=10).tolist()
        for name in ("token", "sequence", "constant")
    }
    assert shares["token"] == [1 / 4] * 4
    assert shares["sequence"] == [1 / 2] + [1 / 6] * 3
    assert shares["constant"] == [1 / 20] * 4


def test_limits_stop_the_gradient_on_the_side_that_would_go_on():
    # ratio 2 above, ratio 1/2 below; credit up, down.
    logp = torch.tensor([math.log(2), math.log(2), -math.log(2), -math.log(2)]).requires_grad_()
    credit = torch.tensor([1.0, -1.0, 1.0, -1.0])
    terms = token_terms(logp, credit=credit, objective=Objective(), old=torch.zeros(4))
    terms.loss.sum().backward()
    assert logp.grad.tolist() == pytest.approx([0.0, 2.0, -0.5, 0.0])
    assert terms.clipped_high.tolist() == [True, False, False, False]
    assert terms.clipped_low.tolist() == [False, False, False, True]


def test_what_the_clamp_cuts_is_counted():
    objective = Objective(kl="k3", kl_coefficient=1.0, kl_clamp=2.0)
    logp = torch.tensor([-1.0, -5.0]).requires_grad_()
    terms = token_terms(
        logp, credit=torch.zeros(2), objective=objective, reference=torch.tensor([-1.5, -1.0])
    )
    assert terms.kl_cut.tolist() == [False, True]
    assert terms.kl.tolist() == pytest.approx([math.exp(-0.5) - 0.5, math.exp(2) - 3])


def test_a_kl_without_reference_is_refused():
    with pytest.raises(SchemaError, match=r"KL `k3` needs the reference's log-prob.*none came"):
        token_terms(
            torch.zeros(1), credit=torch.zeros(1), objective=Objective(kl="k3", kl_coefficient=1.0)
        )
