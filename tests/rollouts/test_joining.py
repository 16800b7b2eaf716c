import json

import numpy as np
import pytest

from tests.probes.tiny import tiny_policy
from tokensense.errors import StoreError
from tokensense.rollouts.joining import joined
from tokensense.rollouts.table import response_texts, text_of, token_texts
from tokensense.rollouts.trajectory import Imported, Trace, assemble
from tokensense.schema import ROLLOUTS
from tokensense.tasks.problem import Problem


@pytest.fixture(scope="module")
def policy():
    return tiny_policy()


def node(policy, questions, answers, *, generator="m", **attrs):
    """A `/rollouts` node: a problem a question, a rollout an answer (problem, text)."""
    problems = [Problem(f"p{i}", question, "2") for i, question in enumerate(questions)]
    traces = [
        Trace(f"p{problem}", f"r{i}", text, reward=1.0, generator=generator)
        for i, (problem, text) in enumerate(answers)
    ]
    found = assemble(Imported(problems, traces, {"dup": 1}, ["line"]), policy)
    return found.assign_attrs(attrs)


def test_texts_tokens_groups_and_clusters_stay_what_they_were(policy):
    one = node(policy, ["What is 1+1?", "What is 2+2?"], [(0, "two"), (1, "four")])
    long = "much longer text than any before, Ü " * 50
    two = node(policy, ["What is 3+3?", "What is  2+2?"], [(0, long), (1, "four"), (1, "")])
    both = joined(one, two)
    assert list(both.variables) == list(ROLLOUTS)
    assert all(both[name].dtype == variable.dtype for name, variable in ROLLOUTS.items())
    for texts in (token_texts, response_texts):
        assert texts(both) == texts(one) + texts(two)
    for name in ("question", "problem_name", "answer", "rollout_name", "generator"):
        assert text_of(both, name) == text_of(one, name) + text_of(two, name)
    # Each problem is a group of its own; equal questions (but for blanks) are one cluster.
    assert both["problem_of"].values.tolist() == [0, 1, 2, 3, 3]
    assert both["cluster"].values.tolist() == [0, 1, 2, 1]
    vocabulary = both["vocab_id"].values
    assert (np.diff(vocabulary) > 0).all()
    assert set(vocabulary) == set(one["vocab_id"].values) | set(two["vocab_id"].values)
    # Texts that both have stand once.
    assert both.sizes["text"] < one.sizes["text"] + two.sizes["text"]


def test_joining_is_associative(policy):
    nodes = [node(policy, [f"What is {i}?", "Why?"], [(0, "a" * i), (1, "b")]) for i in range(3)]
    left = joined(joined(nodes[0], nodes[1]), nodes[2])
    right = joined(nodes[0], joined(nodes[1], nodes[2]))
    assert left.equals(right)
    assert left.attrs == right.attrs


def test_attributes_are_joined_added_or_kept_where_both_agree(policy):
    settings = {"temperature": 1.0, "seed": 0}
    one = node(
        policy, ["a"], [(0, "x")], sampled_by_digest="p", sampling=json.dumps(settings),
        undecided='{"slow": 2}',
    )  # fmt: skip
    again = one.assign_attrs(sampling=json.dumps({**settings, "seed": 1}))
    both = joined(one, again).attrs
    assert both["sampled_by_digest"] == "p"
    assert json.loads(both["sampling"]) == {"temperature": 1.0}
    assert json.loads(both["set_aside"]) == {"dup": 2}
    assert json.loads(both["undecided"]) == {"slow": 4}
    assert both["refused"] == 2
    assert both["sampled_by"] == ["m"]
    other = node(policy, ["a"], [(0, "x")], generator="n", sampled_by_digest="")
    both = joined(one, other).attrs
    assert both["sampled_by_digest"] == ""
    assert json.loads(both["sampling"]) == {}
    assert both["sampled_by"] == ["m", "n"]


def test_ids_of_another_tokenizer_are_found_by_their_bytes(policy):
    one = node(policy, ["a"], [(0, "xy")])
    two = one.copy(deep=True)
    two["vocab_text"].values[:] = two["vocab_text"].values[::-1]
    with pytest.raises(StoreError, match=r"token \d+ is b'.' in the store and b'.' now"):
        joined(one, two)
    with pytest.raises(StoreError, match="tokenizer_digest is 'b"):
        joined(one.assign_attrs(tokenizer_digest="b"), two)
