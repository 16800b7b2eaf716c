"""The full-vocabulary objective, against plain sums in float64 and against what must be 0."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.trainer.test_loop import same, untimed, weights
from tokensense.credit import CATALOGUE
from tokensense.errors import SchemaError
from tokensense.models.head import Head, head_of
from tokensense.trainer import distillation
from tokensense.trainer.batches import collect
from tokensense.trainer.config import OPSD, SDPO, Distillation, TrainConfig
from tokensense.trainer.distillation import Teacher, divergences, follow
from tokensense.trainer.evidence import plan_evidence
from tokensense.trainer.lesson import teach
from tokensense.trainer.loop import train
from tokensense.trainer.problems import planted
from tokensense.trainer.run import own_copy
from tokensense.trainer.update import accumulate, update

SIZES = TrainConfig(problems=4, group=4, max_new_tokens=48, temperature=0.8, tokens_per_row=96)
FEW = replace(SDPO, top=8)  # the policy has fewer words than 100
FORMS = [Distillation(alpha=a, top=t) for a in (0.0, 0.5, 1.0) for t in (0, 3)]


def plain(own, told, form):
    """Divergence of one token, an entry at a time; log-probabilities in float64."""
    if form.top:
        chosen = own.detach().topk(form.top).indices.tolist()

        def cut(rows):
            rest = 1 - sum(rows[place].exp() for place in chosen)
            return [*(rows[place] for place in chosen), rest.log()]

        own, told = cut(own), cut(told)

    def kl(p, q):
        return sum(a.exp() * (a - b) for a, b in zip(p, q, strict=True))

    if form.alpha in {0.0, 1.0}:
        return kl(own, told) if form.alpha else kl(told, own)
    a = form.alpha
    mixed = [((1 - a) * s.exp() + a * t.exp()).log() for s, t in zip(own, told, strict=True)]
    return (1 - a) * kl(own, mixed) + a * kl(told, mixed)


@pytest.mark.parametrize("softcap", [math.inf, 2.0])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_divergences_and_gradients_are_those_of_the_plain_sum(form, softcap, monkeypatch):
    monkeypatch.setattr(distillation, "ENTRIES", 22)  # two rows at a time, the last one alone
    draw = torch.Generator().manual_seed(0)
    rows = [torch.randn(5, 6, generator=draw) for _ in range(2)]
    maps = [torch.randn(11, 6, generator=draw) for _ in range(2)]
    student, weight = rows[0].requires_grad_(), maps[0].requires_grad_()
    teacher = Teacher(rows[1], Head(maps[1], None, 1.5, softcap), form)
    head = Head(weight, None, 1.5, softcap)
    found = divergences(student, head, teacher, temperature=0.7)
    found.mul(torch.arange(1.0, 6.0)).sum().backward()

    def log_p(hidden, matrix):
        logits = 1.5 * hidden.double() @ matrix.double().T
        if softcap < math.inf:
            logits = softcap * torch.tanh(logits / softcap)
        return torch.log_softmax(logits / 0.7, dim=-1)

    twins = [tensor.detach().clone().requires_grad_() for tensor in (student, weight)]
    own, told = log_p(*twins), log_p(rows[1], maps[1])
    truth = torch.stack([plain(a, b, form) for a, b in zip(own, told, strict=True)])
    truth.mul(torch.arange(1.0, 6.0)).sum().backward()
    torch.testing.assert_close(found, truth.float(), rtol=1e-5, atol=1e-6)
    for mine, its in zip((student, weight), twins, strict=True):
        torch.testing.assert_close(mine.grad, its.grad, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def batch(reader):
    found = collect(reader, planted("arithmetic", held_out=8), SIZES, step=1)
    told = [replace(problem, solution="4 + 3 is 7 .") for problem in found.problems]
    return replace(found, problems=told)


@pytest.mark.parametrize(("rule", "form"), [("opsd", OPSD), ("sdpo", FEW)])
def test_the_loss_is_the_mean_over_the_tokens_that_could_be_told(reader, batch, rule, form):
    config = replace(SIZES, rule=rule, distillation=form)
    live = plan_evidence(reader, config.credit(), config)
    (name,) = CATALOGUE[rule].needs
    told = live.told_branches(name, reader, batch)
    _, usable = live.of(reader, batch, first_key=0)
    if rule == "sdpo":  # a right response of another rollout is there for some
        assert set(np.flatnonzero(usable)) <= set(told)
        assert 0 < len(told) < len(batch.traces)
    else:
        assert len(told) == len(batch.traces)
    teacher = own_copy(reader)
    with torch.no_grad():
        for parameter in teacher.model.parameters():
            parameter.mul_(1.05)
    lesson = teach(teacher, batch.branches, told, form=form, config=config)
    copied = own_copy(reader)
    sums = accumulate(copied, lesson, config)

    model = own_copy(reader).model
    total, tokens = torch.zeros((), dtype=torch.float64), 0
    for place, branch in sorted(told.items()):
        mine = rows_of(model, batch.branches[place], config.temperature)
        its = rows_of(teacher.model, branch, config.temperature).detach()
        total = total + sum(plain(a, b, form) for a, b in zip(mine, its, strict=True))
        tokens += len(branch.response)
    (total / tokens).backward()
    assert sums["fed_tokens"] == tokens
    assert sums["loss"] == pytest.approx(float(total.detach()) / tokens, rel=1e-5)
    truth = dict(model.named_parameters())
    for key, parameter in copied.model.named_parameters():
        torch.testing.assert_close(parameter.grad, truth[key].grad, rtol=1e-3, atol=1e-6)


def rows_of(model, branch, temperature):
    """Log-probabilities of the whole vocabulary at each response token, float64."""
    ids = torch.tensor([[*branch.context, *branch.response]])
    logits = model(input_ids=ids, use_cache=False).logits[0].double() / temperature
    return torch.log_softmax(logits, -1)[len(branch.context) - 1 : -1]


def test_a_teacher_that_is_told_nothing_teaches_nothing(reader, batch):
    config = replace(SIZES, rule="opsd", distillation=OPSD)
    same_prompt = dict(enumerate(batch.branches))
    lesson = teach(reader, batch.branches, same_prompt, form=OPSD, config=config)
    copied = own_copy(reader)
    sums = accumulate(copied, lesson, config)
    assert abs(sums["loss"]) < 1e-6
    largest = max(float(p.grad.abs().max()) for p in copied.model.parameters())
    assert largest < 1e-5


def test_the_head_of_a_teacher_stays_between_the_updates_of_a_step(reader, batch):
    several = replace(SIZES, rule="opsd", distillation=OPSD, updates=2)
    for config, shared in ((SIZES, True), (several, False)):
        lesson = teach(reader, batch.branches, {0: batch.branches[0]}, form=OPSD, config=config)
        mine, its = lesson.teacher.head.weight, head_of(reader.model).weight
        assert (mine.data_ptr() == its.data_ptr()) is shared
        assert torch.equal(mine, its)


def run(reader, english, form, **parts):
    rule = "opsd" if form.top == 0 else "sdpo"
    config = replace(
        SIZES, rule=rule, distillation=form, steps=3, learning_rate=1e-3, evaluate_every=0
    )
    return train(reader, english, replace(config, **parts.pop("config", {})), **parts)


@pytest.mark.parametrize("rate", [0.0, 0.05, 1.0])
def test_a_run_that_was_kept_goes_on_in_the_same_bytes(reader, english, rate, tmp_path):
    form = replace(FEW, teacher_rate=rate)
    whole = run(reader, english, form, progress=False)
    kept = {"checkpoint_every": 1}
    run(reader, english, form, out=tmp_path, progress=False, config={**kept, "steps": 2})
    rest = run(reader, english, form, out=tmp_path, progress=False, config=kept)
    assert same(weights(whole.policy), weights(rest.policy))
    assert untimed(whole.records) == untimed(rest.records)
    assert (tmp_path / "step-000003" / "teacher.safetensors").exists() is (rate == 0.05)
    assert not same(weights(whole.policy), weights(reader))


def test_what_is_minimized_falls(reader, batch):
    config = replace(SIZES, rule="opsd", distillation=OPSD)
    live = plan_evidence(reader, config.credit(), config)
    told = live.told_branches("reference", reader, batch)
    lesson = teach(reader, batch.branches, told, form=OPSD, config=config)
    student = own_copy(reader)
    optimizer = torch.optim.Adam(student.model.parameters(), lr=1e-3)
    losses = [update(student, optimizer, lesson, config=config, seed=0)["loss"] for _ in range(8)]
    assert losses[-1] < 0.5 * losses[0]


def test_a_teacher_follows_by_its_rate(reader):
    teacher, policy = own_copy(reader), own_copy(reader)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(1.0)
    follow(teacher, policy, 0.25)
    for name, value in weights(teacher).items():
        torch.testing.assert_close(value, weights(reader)[name] + 0.25)
    before = weights(policy)
    follow(policy, policy, 0.25)
    assert same(weights(policy), before)


def test_what_the_task_says_by_itself_tells_no_teacher(policy, batch):
    config = replace(SIZES, rule="opsd", distillation=OPSD)
    own = {"reference": lambda *_: np.zeros(int(batch.length.sum()))}
    live = plan_evidence(policy, config.credit(), config, told=own)
    with pytest.raises(SchemaError, match="`reference` is measured by the task itself"):
        live.told_branches("reference", policy, batch)
