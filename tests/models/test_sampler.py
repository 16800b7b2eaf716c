"""The sampler against transformers' `generate`, the scorer, and a policy known in closed form."""

import inspect

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from transformers import GenerationConfig

from tests.bigram import bigram_logp, bigram_policy
from tests.models.zoo import FALL_BACK, tiny_policy
from tokensense.errors import PolicyError, SchemaError
from tokensense.models import sampler
from tokensense.models.plan import Branch
from tokensense.models.sampler import sample, sampling_objection
from tokensense.models.scorer import score
from tokensense.schema import Finish

ENDS = (7, 40)
# Unequal lengths, two of them equal prompts.
PROMPTS = [list(range(10, 10 + n)) for n in (5, 1, 12, 5, 3)]


@pytest.fixture(scope="module")
def bigram():
    return bigram_policy()


@pytest.fixture(scope="module")
def qwen():
    return tiny_policy("qwen3")


def ids_of(policy, prompts=PROMPTS, **options):
    options = {"max_new_tokens": 30, "ends": ENDS, "seed": 3, **options}
    return [found.ids for found in sample(policy, prompts, **options)]


def likeliest(policy, prompt, count):
    """transformers' own greedy decoding, one prompt at a time."""
    policy.model.generation_config = GenerationConfig(
        do_sample=False, max_new_tokens=count, eos_token_id=list(ENDS), pad_token_id=0
    )
    ids = torch.tensor([prompt])
    found = policy.model.generate(input_ids=ids, attention_mask=torch.ones_like(ids))
    return tuple(found[0, len(prompt) :].tolist())


# With 70 new tokens keys and values outgrow their first room.
@pytest.mark.parametrize(
    ("name", "most"), [("llama", 70), ("qwen3", 20), ("gpt2", 10), ("opt", 10), ("phi", 10)]
)
def test_the_likeliest_tokens_are_those_of_transformers(name, most):
    policy = tiny_policy(name)
    assert sampling_objection(policy) == ""
    found = ids_of(policy, max_new_tokens=most, temperature=0.0)
    assert found == [likeliest(policy, prompt, most) for prompt in PROMPTS]


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_recorded_log_probabilities_are_those_of_the_scorer(qwen, temperature):
    found = sample(qwen, PROMPTS, max_new_tokens=80, ends=ENDS, seed=1, temperature=temperature)
    branches = [Branch(tuple(prompt), row.ids) for prompt, row in zip(PROMPTS, found, strict=True)]
    for row, truth in zip(found, score(qwen, branches, temperature=temperature), strict=True):
        np.testing.assert_allclose(row.logps, truth.logp, atol=1e-4)


def test_at_temperature_zero_the_token_was_certain(qwen):
    found = sample(qwen, PROMPTS, max_new_tokens=4, ends=(), temperature=0.0)
    assert {logp for row in found for logp in row.logps} == {0.0}


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_tokens_come_as_often_as_the_closed_form_says(bigram, temperature):
    rows, last = 3000, ord("a")
    found = ids_of(
        bigram, [[last]] * rows, max_new_tokens=2, ends=(), temperature=temperature, seed=5
    )
    table = bigram_logp(bigram) / temperature
    chance = np.exp(table - np.log(np.exp(table).sum(1, keepdims=True)))
    first, second = np.array(found).T
    assert p_value(np.bincount(first, minlength=260), rows * chance[last]) > 0.01
    # The second tokens: a mixture over the first ones that came.
    expected = chance[first].sum(0)
    assert p_value(np.bincount(second, minlength=260), expected) > 0.01


def p_value(count, expected):
    """Pearson's test; rare tokens together, so that each cell expects at least five."""
    rare = expected < 5
    count = np.append(count[~rare], count[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    count, expected = count[expected > 0], expected[expected > 0]
    return chi2.sf(((count - expected) ** 2 / expected).sum(), len(expected) - 1)


def test_every_number_is_drawn_with_the_numbers_of_its_own_row():
    logits = torch.tensor([[0.0, 0.0, -torch.inf, 0.0]]).expand(6, -1)
    draws = torch.tensor([0.0, 0.333, 0.334, 0.66, 0.667, 1 - 2**-53], dtype=torch.double)
    token, logp = sampler._drawn(logits, draws, 1.0)
    assert token.tolist() == [0, 0, 1, 1, 3, 3]  # never 2: its probability is 0
    np.testing.assert_allclose(logp, np.log(1 / 3), atol=1e-6)


def test_rows_that_end_give_their_places_to_the_last_ones():
    going = torch.tensor([True, False, True, False, True, True, False])
    assert sampler._kept(going).tolist() == [0, 4, 2, 5]
    assert sampler._kept(torch.zeros(3, dtype=torch.bool)).tolist() == []
    assert sampler._kept(torch.ones(3, dtype=torch.bool)).tolist() == [0, 1, 2]


def test_rows_do_not_depend_on_batches_dropping_or_the_rows_beside_them(qwen, monkeypatch):
    truth = ids_of(qwen)
    assert len({len(ids) for ids in truth}) > 1  # rows end at different places
    for batch in (1, 2, 3):
        assert ids_of(qwen, batch=batch) == truth
    never, in_order = (
        (lambda going: torch.arange(len(going))),
        (lambda going: going.nonzero()[:, 0]),
    )
    for kept in (never, in_order):
        with monkeypatch.context() as patch:
            patch.setattr(sampler, "_kept", kept)
            assert ids_of(qwen) == truth
    beside = [PROMPTS[0], [200] * 20, *PROMPTS[2:3], [100], [1, 2]]
    again = ids_of(qwen, beside)
    assert (again[0], again[2]) == (truth[0], truth[2])
    assert again[1] != truth[1]


def test_a_longer_response_begins_as_a_shorter_one(qwen):
    short, long = ids_of(qwen, max_new_tokens=5), ids_of(qwen)
    assert [ids[:5] for ids in long] == short


def test_a_seed_gives_the_same_bytes_and_another_seed_others(qwen):
    runs = [sample(qwen, PROMPTS, max_new_tokens=20, ends=ENDS, seed=s) for s in (1, 1, 2)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]
    equal = ids_of(qwen, [PROMPTS[0]] * 4)
    assert len(set(equal)) == 4  # rows of one prompt draw their own numbers


def test_a_response_stops_at_its_first_end_token_whichever_it_is(bigram):
    found = sample(bigram, [[65]] * 60, max_new_tokens=60, ends=ENDS, seed=2)
    stopped = [row for row in found if row.finish == Finish.STOP]
    cut = [row for row in found if row.finish == Finish.LENGTH]
    assert {row.ids[-1] for row in stopped} == set(ENDS)
    assert all(not set(row.ids[:-1]) & set(ENDS) for row in stopped)
    assert cut
    assert all(len(row.ids) == 60 and not set(row.ids) & set(ENDS) for row in cut)
    assert all(len(row.ids) == len(row.logps) for row in found)


def test_finished_rows_leave_the_batch_and_equal_prompts_are_read_once(bigram, monkeypatch):
    sizes = []
    read = sampler._Reader._logits

    def counted(self, ids, mask, position):
        sizes.append(len(ids))
        return read(self, ids, mask, position)

    monkeypatch.setattr(sampler._Reader, "_logits", counted)
    done = []
    sample(bigram, [[65]] * 60 + [[66, 67]] * 20, max_new_tokens=60, ends=ENDS,
           progress=done.append)  # fmt: skip
    assert sizes[0] == 2
    assert 78 <= sizes[1] <= 80  # two rows of eighty may end at once
    assert sizes[-1] < 80
    assert sorted(sizes[1:], reverse=True) == sizes[1:]
    assert sum(done) == 80


def test_no_prompts_give_no_responses(qwen):
    assert sample(qwen, [], max_new_tokens=3, ends=()) == []


def test_training_mode_is_put_back(qwen):
    qwen.model.train()
    ids_of(qwen, max_new_tokens=2)
    assert qwen.model.training
    qwen.model.eval()


@pytest.mark.parametrize("name", ["mistral", "gemma2", "gemma3", "gptoss", *FALL_BACK])
def test_other_attentions_and_caches_are_left_to_transformers(name):
    assert sampling_objection(tiny_policy(name))


def test_an_objection_is_found_by_numbers_too(monkeypatch):
    policy = tiny_policy("gpt2")  # its positions are absolute: padding would shift them
    forward = policy.model.forward

    def deaf(*args, position_ids=None, **kwargs):
        del position_ids
        return forward(*args, **kwargs)

    deaf.__signature__ = inspect.signature(forward)
    monkeypatch.setattr(policy.model, "forward", deaf)
    assert "off by" in sampling_objection(policy)


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([[1], []], "prompt 1 has 0"),
        ([[1] * 230], "1 to 226 tokens .* prompt 0 has 230"),
        ([[1], [300]], r"\[0, 300\).* prompt 1 has 300 to 300"),
        ([[-1]], "prompt 0 has -1"),
    ],
)
def test_prompts_that_cannot_be_read_are_named(qwen, prompts, message):
    with pytest.raises(PolicyError, match=message):
        ids_of(qwen, prompts)


@pytest.mark.parametrize(
    "options",
    [
        {"max_new_tokens": 0},
        {"temperature": -1.0},
        {"batch": 0},
        {"temperature": np.nan},
        {"seed": -1},
    ],
)
def test_numbers_out_of_range_are_refused(qwen, options):
    with pytest.raises(SchemaError, match=next(iter(options))):
        ids_of(qwen, **options)


def test_a_batch_is_as_large_as_its_keys_and_values_allow(qwen, monkeypatch):
    # 2 layers, 2 heads of 8 numbers of 4 bytes, keys and values: 256 bytes a token.
    monkeypatch.setattr(sampler, "CACHE_BYTES", 256 * 100 * 7)
    assert sampler._rows_at_once(qwen, tokens=100) == 7
    assert sampler._rows_at_once(qwen, tokens=10**6) == 1
    assert sampler._rows_at_once(qwen, tokens=1) == sampler.MOST_ROWS
