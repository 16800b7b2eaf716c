"""Rules of self-distillation against the written vectors and by hand."""

import json
import math

import numpy as np
import pytest
import torch

from tests.credit.builders import LIBRARIES
from tests.credit.vectors import LOGP, Z_NEG, Z_POS, credit
from tokensense.credit.self_distillation import divergence, k3
from tokensense.errors import SchemaError

RLSD = {
    1.0: [1.005025, 1.1, 1.010101, 0.9, 1.0, 0.975615],
    -1.0: [-0.995025, -0.9, -0.990099, -1.1, -1.0, -1.025636],
}
CEPO = {
    1.0: [1.002506, 1.080917, 1.036254, 0.870409, 1.001001, 0.939048],
    -1.0: [-0.997506, -0.930354, -0.966197, -1.174929, -0.999001, -1.069414],
}
STUDENT = [-0.1, -0.9, -0.3, -1.2, -0.5, -0.7]
CAL_OPD = {
    0.0: [0.08, -0.6, 0.0, -1.0, 0.49, 0.0],
    1.0: [0.08, -0.2, 0.0, -1.0, 0.488, 0.0],
    5.0: [0.08, 0.0, 0.0, -1.0, 0.48, 0.0],
}
DISTILLED = [1.065382, 1.573549, 1.076089, 0.523789, 1.054781, 1.003339]
libraries = pytest.mark.parametrize("library", LIBRARIES)


@libraries
@pytest.mark.parametrize("side", RLSD)
def test_rlsd_and_cepo(library, side):
    found = credit("rlsd", library, advantage=side, answer_pos=Z_POS)
    np.testing.assert_allclose(found, RLSD[side], atol=6e-7)
    found = credit("cepo", library, advantage=side, answer_pos=Z_POS, answer_neg=Z_NEG)
    np.testing.assert_allclose(found, CEPO[side], atol=6e-7)


@libraries
@pytest.mark.parametrize("strength", CAL_OPD)
def test_cal_opd(library, strength):
    gap = np.array(LOGP) - np.array(STUDENT)
    told = {"teacher": gap, "teacher_pos": Z_POS, "teacher_neg": Z_NEG}
    found = credit("cal_opd", library, settings={"strength": strength}, **told)
    np.testing.assert_allclose(found, CAL_OPD[strength], atol=6e-7)


def test_ps_opd_keeps_a_token_on_the_threshold():
    assert credit("ps_opd", teacher_neg=Z_NEG).tolist() == [1, 0.25, 1, 0.25, 1, 0.25]


@libraries
def test_distilled_rl_reweighs_good_responses_alone(library):
    np.testing.assert_allclose(credit("distilled_rl", library, teacher=Z_POS), DISTILLED, atol=6e-7)
    assert credit("distilled_rl", library, advantage=-2.0, teacher=Z_POS).tolist() == [-2.0] * 6


def test_distilled_rl_clips_before_it_takes_the_mean():
    found = credit("distilled_rl", teacher=[9.0, 0.0])
    np.testing.assert_allclose(found, [math.sqrt(3), 1 / math.sqrt(3)], rtol=1e-12)


def test_sd_grpo_follows_the_verdict_that_matches_the_outcome():
    told = {"z_pos": Z_POS, "z_neg": Z_NEG}
    assert credit("sd_grpo", **told).tolist() == [1, 1, 1, -1, 0, -1]
    assert credit("sd_grpo", advantage=-2.0, **told).tolist() == [2, 2, -2, -2, -2, 2]


def test_the_vectors_of_the_file(shared):
    found = json.loads((shared / "methods/vectors/cscr.json").read_text())
    z_pos, z_neg = np.array(found["z_pos"]), np.array(found["z_neg"])
    for side in (1, -1):
        rlsd = credit("rlsd", advantage=float(side), answer_pos=z_pos)
        np.testing.assert_allclose(rlsd, found[f"rlsd_A{side}"], atol=6e-7)
        cepo = credit("cepo", advantage=float(side), answer_pos=z_pos, answer_neg=z_neg)
        np.testing.assert_allclose(cepo, found[f"cepo_A{side}"], atol=6e-7)
    gap = np.array(found["base"]) - np.array(found["calopd_student"])
    told = {"teacher": gap, "teacher_pos": z_pos, "teacher_neg": z_neg}
    for strength, name in ((0.0, "calopd_A0"), (1.0, "calopd_lam1"), (5.0, "calopd_lam5")):
        came = credit("cal_opd", settings={"strength": strength}, **told)
        np.testing.assert_allclose(came, found[name], atol=6e-7)


def test_sampled_token_signals_are_the_shifts():
    assert credit("opsd", advantage=-1.0, reference=Z_POS).tolist() == Z_POS
    assert credit("sdpo", advantage=0.0, sibling_pos=Z_NEG).tolist() == Z_NEG


def test_cort_moves_weight_to_what_the_rubric_makes_likelier():
    g = [1 + 0.5 * math.tanh(z) for z in (0.4, -0.7)]
    found = credit("cort", rubric=[0.4, -0.7])
    np.testing.assert_allclose(found, [2 * g[0] / sum(g), 2 * g[1] / sum(g)], rtol=1e-12)


def test_sc_grpo_weighs_by_the_divergence_of_the_sampled_token():
    k = [math.exp(z) - z - 1 for z in Z_POS]
    found = credit("sc_grpo", sibling_pos=Z_POS)
    np.testing.assert_allclose(found, 6 * np.array(k) / sum(k), rtol=1e-9)
    assert credit("sc_grpo", sibling_pos=[0.0, 0.0]).tolist() == [1.0, 1.0]


def test_the_estimate_has_the_divergence_as_its_mean():
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])
    exact = (p * np.log(p / q)).sum()
    assert (p * k3(np.log(q / p))).sum() == pytest.approx(exact, rel=1e-12)


ROWS = np.log(np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]]))
TOLD = np.log(np.array([[0.4, 0.5, 0.1], [0.1, 0.1, 0.8]]))


@libraries
@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 1.0])
def test_divergence_by_hand(library, alpha):
    def kl(p, q):
        return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))

    s, t = np.exp(ROWS[0]), np.exp(TOLD[0])
    mixed = (1 - alpha) * s + alpha * t
    between = (1 - alpha) * kl(s, mixed) + alpha * kl(t, mixed)
    expected = {0.0: kl(t, s), 1.0: kl(s, t)}.get(alpha, between)
    found = divergence(LIBRARIES[library](ROWS), LIBRARIES[library](TOLD), alpha=alpha)
    np.testing.assert_allclose(found, [expected, 0], rtol=1e-12, atol=1e-15)


def test_the_gradient_of_the_reverse_divergence_is_that_of_the_sampled_token_signal():
    # grad KL(S || T) = E_S[(log S - log T) grad log S], the signal lT - lS with its sign turned.
    logits = torch.tensor([0.3, -0.2, 1.0], dtype=torch.float64, requires_grad=True)
    teacher = torch.log_softmax(torch.tensor([1.0, 0.0, 0.2], dtype=torch.float64), 0)
    student = torch.log_softmax(logits, 0)
    divergence(student[None], teacher[None], alpha=1.0).sum().backward()
    signal = (teacher - student).detach()
    again = torch.log_softmax(logits, 0)
    (expected,) = torch.autograd.grad(-(again.exp().detach() * signal * again).sum(), logits)
    torch.testing.assert_close(logits.grad, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("rlsd", {"mix": 1.1}), ("rlsd", {"bound": -0.1}), ("cepo", {"mix": -1.0}),
        ("cal_opd", {"strength": -1.0}), ("ps_opd", {"threshold": -1.0}), ("ps_opd", {"kept": 2.0}),
        ("cort", {"size": 1.0}), ("cort", {"scale": 0.0}), ("distilled_rl", {"bound": 0.5}),
    ],
)  # fmt: skip
def test_settings_out_of_range_are_refused(name, setting):
    with pytest.raises(SchemaError, match=f"`{next(iter(setting))}` needs a value in"):
        credit(name, settings=setting, z_pos=[0.0])
