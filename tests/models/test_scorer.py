import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bigram import bigram_logp, bigram_policy
from tests.models.zoo import FALL_BACK, PACKED, tiny_policy
from tests.reference.scorer import reference_scores
from tokensense.errors import PolicyError, SchemaError
from tokensense.models.distribution import top_log_probs
from tokensense.models.head import head_of, log_statistics
from tokensense.models.plan import Branch
from tokensense.models.scorer import Scores, read_rows, resolved_path, score, scoring_settings

BIGRAM = bigram_policy()
TABLE = bigram_logp(BIGRAM)
PATHS = ["trie", "padded"]


def some_branches(*, vocabulary: int = 300) -> list[Branch]:
    """Three conditions of one prompt by responses of 1, 30 and 7 tokens; shortest and longest."""
    rng = np.random.default_rng(1)
    prompt = rng.integers(0, vocabulary, 40).tolist()
    found = [
        Branch((*prompt[:20], *insert), tuple(rng.integers(0, vocabulary, n).tolist()))
        for insert in ((), (3, 4), (3, 9, 9))
        for n in (1, 30, 7)
    ]
    return [*found, Branch((5,), (7,)), Branch(tuple(prompt), tuple(prompt))]


def largest_error(found: list[Scores], branches: list[Branch], model) -> tuple[float, float]:
    """Largest and mean difference from the slow reference, over all statistics."""
    errors = [
        np.abs(np.array(truth) - getattr(scores, name))
        for scores, (context, response) in zip(found, branches, strict=True)
        for name, truth in reference_scores(model, list(context), list(response)).items()
    ]
    return float(np.concatenate(errors).max()), float(np.concatenate(errors).mean())


@pytest.mark.parametrize("path", PATHS)
@settings(deadline=None, max_examples=25)
@given(
    contexts=st.lists(st.lists(st.integers(0, 259), max_size=20), min_size=2, max_size=4),
    length=st.integers(1, 12),
    size=st.sampled_from([1, 7, 30, 4096]),
    seed=st.integers(0, 99),
)
def test_where_context_cannot_matter_every_shift_is_zero_to_the_last_bit(
    path, contexts, length, size, seed
):
    rng = np.random.default_rng(seed)
    last, *response = rng.integers(0, 260, length + 1).tolist()
    # The same response after contexts of the same last token; a shorter copy beside it.
    branches = [Branch((*context, last), tuple(response)) for context in contexts]
    branches += [Branch((last,), tuple(response[: length // 2 + 1]))]
    base, *others = score(BIGRAM, branches, tokens_per_row=size, path=path)
    closed_form = TABLE[[last, *response[:-1]], response]
    np.testing.assert_allclose(base.logp, closed_form, rtol=0, atol=5e-6)
    for other in others:
        for one, two in zip(other, base, strict=True):
            assert one.tobytes() == two[: len(one)].tobytes()


@pytest.mark.parametrize("path", ["auto", "padded"])
@pytest.mark.parametrize("name", PACKED)
def test_packed_architectures_agree_with_the_reference(name, path):
    policy, branches = tiny_policy(name), some_branches()
    found = score(policy, branches, tokens_per_row=64, path=path)
    assert resolved_path(policy, "auto") == "trie", policy.objections
    largest, mean = largest_error(found, branches, policy.model)
    assert largest < 1e-4
    assert mean < 1e-5


@pytest.mark.parametrize("name", FALL_BACK)
def test_architectures_that_cannot_be_packed_fall_back_and_agree(name):
    policy, branches = tiny_policy(name), some_branches()
    found = score(policy, branches, tokens_per_row=100)
    assert scoring_settings(policy)["path"] == "padded"
    assert largest_error(found, branches, policy.model)[0] < 1e-4
    with pytest.raises(PolicyError, match=r"Score with path='padded'"):
        score(policy, branches, path="trie")


def test_a_branch_does_not_depend_on_longer_ones_beside_it():
    # Its positions are told otherwise as soon as anything fed is longer than 30 tokens.
    policy, branches = tiny_policy("phi3"), some_branches()
    assert scoring_settings(policy, path="padded")["path"] == "alone"
    found = score(policy, branches)
    assert largest_error(found, branches, policy.model)[0] < 1e-4
    again = score(policy, branches, path="alone")  # what a resolved path says can be asked for
    assert [a.logp.tobytes() for a in again] == [a.logp.tobytes() for a in found]
    with pytest.raises(PolicyError, match="positions follow the longest sequence fed"):
        score(policy, branches, path="trie")


def test_temperature_divides_the_logits():
    policy, (branch, *_) = tiny_policy("llama"), some_branches()
    (found,) = score(policy, [branch], temperature=0.5)
    truth = reference_scores(policy.model, list(branch.context), list(branch.response), 0.5)
    np.testing.assert_allclose(found.logp, truth["logp"], atol=1e-4)
    assert abs(found.logp - score(policy, [branch])[0].logp).max() > 0.1


@pytest.mark.parametrize("path", PATHS)
def test_the_same_plan_gives_the_same_bytes_and_another_nearly(path):
    policy, branches = tiny_policy("qwen3"), some_branches()
    first = score(policy, branches, path=path)
    order = np.random.default_rng(0).permutation(len(branches))
    again = score(policy, [branches[i] for i in order], path=path)
    for place, i in enumerate(order):
        assert [x.tobytes() for x in again[place]] == [x.tobytes() for x in first[i]]
    other = score(policy, branches, path=path, tokens_per_row=70)
    assert max(abs(a.logp - b.logp).max() for a, b in zip(first, other, strict=True)) < 1e-4


@pytest.mark.parametrize("path", PATHS)
def test_threads_do_not_change_a_byte(path):
    policy, branches = tiny_policy("llama"), some_branches()
    before = torch.get_num_threads()
    try:
        found = []
        for threads, streams in ((1, None), (2, None), (5, None), (5, 2)):
            torch.set_num_threads(threads)
            scores = score(policy, branches, tokens_per_row=32, path=path, streams=streams)
            found.append([x.tobytes() for part in scores for x in part])
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1] == found[2] == found[3]


def test_no_statistic_is_nan_and_each_has_its_range():
    for scores in score(tiny_policy("gemma2"), some_branches()):
        assert (scores.logp <= 0).all()
        assert (scores.entropy >= 0).all()
        assert (scores.entropy <= np.log(300) + 1e-5).all()
        assert (scores.p_square_sum <= scores.p_max + 1e-6).all()
        assert (scores.p_max <= 1).all()
        assert {x.dtype for x in scores} == {np.dtype(np.float32)}


def test_empty_responses_give_empty_arrays():
    none, one = score(BIGRAM, [Branch((1,), ()), Branch((1,), (2,))])
    assert [len(x) for x in none] == [0, 0, 0, 0]
    assert [len(x) for x in one] == [1, 1, 1, 1]
    assert score(BIGRAM, []) == []


@pytest.mark.parametrize("path", PATHS)
def test_a_model_is_left_as_it_was(path):
    policy = tiny_policy("llama")
    policy.model.train()
    policy.model.model.layers[0].eval()
    modes = [module.training for module in policy.model.modules()]
    implementation = policy.model.config._attn_implementation
    ids = torch.tensor([[5, 6, 7]])
    before = policy.model(ids).logits
    score(policy, some_branches(), path=path)
    assert [module.training for module in policy.model.modules()] == modes
    assert policy.model.config._attn_implementation == implementation
    assert torch.equal(policy.model(ids).logits, before)
    assert policy.model.generate(ids, max_new_tokens=3, do_sample=False).shape == (1, 6)


def test_dropout_is_off_while_scoring():
    policy = tiny_policy("gpt2")  # dropout .1 by default
    branches = some_branches()
    before = score(policy, branches)
    policy.model.train()
    after = score(policy, branches)
    assert [x.logp.tobytes() for x in before] == [x.logp.tobytes() for x in after]


def test_progress_adds_up_to_the_response_tokens():
    steps: list[int] = []
    branches = some_branches()
    score(tiny_policy("llama"), branches, tokens_per_row=60, progress=steps.append)
    assert len(steps) > 3
    assert sum(steps) == sum(len(branch.response) for branch in branches)


def test_a_head_wider_than_the_tokenizer_is_scored_over_its_whole_width():
    assert len(BIGRAM.tokenizer) == 258
    (found,) = score(BIGRAM, [Branch((1,), (259,))])
    np.testing.assert_allclose(found.logp, [TABLE[1, 259]], atol=5e-6)


@pytest.mark.parametrize(
    ("branch", "message"),
    [
        (Branch((), (1,)), "needs a context token before its response; branch 1 has none"),
        (Branch((1, 2), (3, 260)), "branch 1, response token 1 is 260"),
        (Branch((1, -2), (3,)), "branch 1, context token 1 is -2"),
        (Branch((1,) * 4000, (2,) * 97), "branch 1 has 4000 of context and 97 of response"),
    ],
)
def test_what_cannot_be_scored_is_refused_by_name(branch, message):
    with pytest.raises(PolicyError, match=re.escape(message)):
        score(BIGRAM, [Branch((1,), (2,)), branch])


def test_a_branch_as_long_as_the_context_is_scored():
    policy = bigram_policy(context_length=12)
    (found,) = score(policy, [Branch((1,) * 4, (2,) * 8)])
    np.testing.assert_allclose(found.logp[1:], [TABLE[2, 2]] * 7, atol=5e-6)


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": 0.0}, {"tokens_per_row": 0}, {"path": "fast"}, {"temperature": np.nan}],
)
def test_settings_outside_their_range_are_refused(wrong):
    with pytest.raises(SchemaError, match=f"`{next(iter(wrong))}` needs"):
        score(BIGRAM, [Branch((1,), (2,))], **wrong)


def test_settings_are_what_decides_the_bytes():
    found = scoring_settings(BIGRAM, tokens_per_row=9, temperature=2.0, path="padded")
    assert (found["path"], found["tokens_per_row"], found["temperature"]) == ("padded", 9, 2.0)
    assert found["dtype"] == "float32"
    assert scoring_settings(BIGRAM)["path"] == "trie"


def test_a_head_that_does_more_than_its_config_says_is_refused():
    policy = tiny_policy("llama")
    policy.model.lm_head.register_forward_hook(lambda module, inputs, output: output * 2)
    with pytest.raises(PolicyError, match="logits that are a linear map of the last hidden state"):
        score(policy, some_branches())


@pytest.mark.parametrize("path", PATHS)
def test_rows_are_read_once_each_and_lead_to_the_scores(path):
    policy, branches = tiny_policy("llama"), some_branches()
    head = head_of(policy.model)
    logp = np.concatenate([scores.logp for scores in score(policy, branches, path=path)])
    states = torch.full((len(logp), policy.model.config.hidden_size), torch.nan)
    for slots, hidden in read_rows(policy, branches, lambda hidden, _: hidden, path=path):
        assert torch.isnan(states[slots]).all()  # none is given twice
        states[slots] = hidden
    targets = torch.tensor([token for branch in branches for token in branch.response])
    again = log_statistics(states, targets, head).logp.detach()
    np.testing.assert_allclose(again, logp, atol=1e-5)


def test_the_likeliest_tokens_of_a_bigram_model_are_those_of_its_table():
    branches = [Branch((3, 7), (1, 2, 7)), Branch((7,), (1,))]
    head = head_of(BIGRAM.model)
    found = np.full((4, 5), np.nan)
    rows = read_rows(BIGRAM, branches, lambda hidden, _: top_log_probs(hidden, head, top=5).logp)
    for slots, top in rows:
        found[slots] = top
    truth = np.sort(TABLE[[7, 1, 2, 7]], axis=1)[:, :-6:-1]
    np.testing.assert_allclose(found, truth, atol=1e-5)
