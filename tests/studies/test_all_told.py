"""What a model of language is told, by whose problem it is, and where there is nothing to tell."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from studies import all_parts, all_told
from studies.all_evidence import Setting, base
from tokensense.models.plan import Branch
from tokensense.models.policy import Policy, load_policy
from tokensense.probes import bank


class Reader:
    """Renders to the bytes of what it is told."""

    wordings = "english"

    def render(self, question, *, insert=""):
        return list(f"{question}|{insert}".encode())

    def plain_text(self, ids):
        return bytes(ids).decode()

    def token_bytes(self, token):
        return bytes([token])


@pytest.fixture
def seen(monkeypatch):
    """Texts behind which responses were scored; log p is 3 everywhere."""
    found = []

    def logps(policy, setting, contexts):
        del policy
        found.append([None if ids is None else bytes(ids).decode() for ids in contexts])
        lengths = [len(branch.response) for branch in setting.branches]
        values = [np.nan if ids is None else 3.0 for ids in contexts]
        return np.repeat(values, lengths)

    monkeypatch.setattr(all_told, "logps", logps)
    return found


def setting():
    """Two problems with two responses of two tokens each; the second has nothing to be shown."""
    known = [{"answer": "18", "wrong_answer": "17", "solution": "9 * 2"}] * 2 + [{}] * 2
    arrays = {
        "length": np.full(4, 2),
        "logp": np.full(8, 1.0),
        "group": np.array([0, 0, 1, 1]),
        "reward": np.array([1.0, 0.0, 1.0, 1.0]),
    }
    branches = [Branch((0,), tuple(text.encode())) for text in ("ab", "cd", "ef", "ef")]
    return Setting(Reader(), {}, branches, ["p", "p", "q", "q"], known, arrays, False)


def test_right_and_wrong_answers_are_those_of_the_problem(seen):
    found = all_told.answers(setting())
    right = "p|" + bank.ANSWER_FRAMES["final"].replace("{answer}", "18")
    wrong = "p|" + bank.ANSWER_FRAMES["final"].replace("{answer}", "17")
    assert seen == [[right, right, None, None], [wrong, wrong, None, None]]
    for name in ("answer_pos", "answer_neg"):
        assert found[name][:4].tolist() == [2.0] * 4  # 3 told, 1 under the question alone
        assert np.isnan(found[name][4:]).all()


def test_a_solution_is_shown_where_one_is_known(seen):
    found = all_told.reference(setting())["reference"]
    assert seen[0][0] == "p|" + bank.REFERENCE_TEXT.replace("{solution}", "9 * 2")
    assert np.isnan(found).tolist() == [False] * 4 + [True] * 4


def test_siblings_are_of_the_group_and_never_the_response_itself(seen):
    found = all_told.siblings(setting())
    shown = [text and text.removeprefix("p|") for text in seen[0]]
    # To the right response no other right one can be shown; alike ones are one.
    assert shown == [None, bank.SIBLING_TEXT.replace("{sibling}", "ab"), None, None]
    assert np.isnan(found["sibling_pos"]).tolist() == [True, True, False, False] + [True] * 4
    assert found["sibling_pos"][2:4].tolist() == [2.0, 2.0]
    assert np.isnan(found["sibling_neg"]).tolist() == [False, False] + [True] * 6


def test_a_part_takes_along_what_is_known():
    part = setting().part(np.array([1, 2]))
    assert [sorted(known) for known in part.known] == [["answer", "solution", "wrong_answer"], []]


def test_lines_are_steps_and_end_with_their_break():
    found = all_parts.lines(Reader(), [tuple(b"a\nbc\n"), tuple(b"d"), ()])
    assert found.tolist() == [0, 0, 1, 1, 1, 0]


@pytest.fixture(scope="module")
def pair():
    """Two checkpoints of one kind that are asked in English, and two responses."""
    ours, theirs = (load_policy(f"tiny:{name}") for name in ("mixed", "truthful"))
    asked = [Policy(p.model, p.tokenizer, name=p.name, wordings="english") for p in (ours, theirs)]
    texts = ["first 4 + 3 = 7 .", "then 5 * 2 = 1 0 ;"]
    branches = [Branch(tuple(asked[0].render("4 + 3")), tuple(asked[0].encode(t))) for t in texts]
    length = np.array([len(branch.response) for branch in branches])
    ids = np.concatenate([branch.response for branch in branches])
    both = Setting(
        asked[0],
        {"teacher": asked[1], "reference": asked[1]},
        branches,
        ["4 + 3"] * 2,
        [{}, {}],
        {"length": length, "token_id": ids},
        False,
    )
    arrays = {**both.arrays, "logp": base(both)["again"]}
    return replace(both, arrays=arrays)


def distributions(policy, branch):
    """p of every entry at each response token, float64."""
    ids = torch.tensor([[*branch.context, *branch.response]])
    with torch.no_grad():
        logits = policy.model(input_ids=ids, use_cache=False).logits[0].double()
    return torch.softmax(logits, -1)[len(branch.context) - 1 : -1].numpy()


def test_drift_and_teacher_are_those_of_both_checkpoints(pair):
    found = all_told.drift(pair) | all_told.teacher(pair)
    change, distance = [], []
    for branch in pair.branches:
        ours, theirs = (distributions(p, branch) for p in (pair.policy, pair.others["teacher"]))
        place = np.arange(len(branch.response)), list(branch.response)
        change.append(np.log(ours[place]) - np.log(theirs[place]))
        distance.append(1 - np.sqrt(ours * theirs).sum(axis=1))
    np.testing.assert_allclose(found["drift"], np.concatenate(change), atol=1e-4)
    np.testing.assert_allclose(found["teacher"], -np.concatenate(change), atol=1e-4)
    np.testing.assert_allclose(found["hellinger"], np.concatenate(distance), atol=1e-5)


def test_a_teacher_is_told_the_first_verdict_in_the_first_sentence(pair, seen):
    all_told.teacher_verdicts(replace(pair, policy=Reader()))
    frame = next(iter(bank.FRAMES.values()))
    texts = [f"4 + 3|{frame.replace('{word}', word)}" for word in bank.VERDICTS[0]]
    assert seen == [[text] * 2 for text in texts]
