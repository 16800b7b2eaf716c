import dataclasses
import hashlib
import re
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tasks.test_arithmetic import plain_steps, settings_of_chains
from tokensense.errors import SchemaError
from tokensense.schema import Kind
from tokensense.tasks.arithmetic import (
    CONNECTIVES,
    EQUALITIES,
    FILLERS,
    LEADS,
    NEUTRALS,
    OPENERS,
    PLACEBO_WORDS,
    SEPARATORS,
    VERDICT_WORDS,
    VOCABULARY,
    Chains,
    solve,
)
from tokensense.tasks.arithmetic_labels import label
from tokensense.tasks.arithmetic_traces import TAGGINGS, Tags, examples

# SHA-256 of 100 examples of seed 0: another one means that trained policies see other data.
DIGEST = "66849c4035950181f6fa348282faf544948f1047d4eebb9eabaf2213c7603fb0"
EQUATION = re.compile(r"(\d+)([-+*])(\d+)(?:=|is|gives|makes)(\d+)[.;/]")
ANSWER = re.compile(
    r"(?:(?:answer|result|total|finally|overall|altogether):?(\d+)|\[(\d+)\])<eos>$"
)


def made(seed=0, count=1, **change):
    tags = change.pop("tags", Tags())
    rng = np.random.default_rng(seed)
    return list(examples(rng, count=count, chains=Chains(**change), tags=tags))


def written(example):
    """Equations and answer as a reader finds them in the joined text."""
    text = "".join(example.words)
    equations = [(int(a), o, int(b), int(r)) for a, o, b, r in EQUATION.findall(text)]
    answer = ANSWER.search(text)
    return equations, int(answer[1] or answer[2])


def check(example):
    """Everything that the plan promises of one example, from its text alone."""
    equations, answer = written(example)
    false = [k for k, (a, o, b, r) in enumerate(equations) if eval(f"{a}{o}{b}") != r]
    assert false == ([] if example.right else [example.wrong_step])
    true = plain_steps(example.chain.question)
    assert equations[: example.wrong_step] == true[: example.wrong_step]
    wrong = example.wrong_step
    result = equations[wrong][3] if wrong >= 0 else 0
    assert equations == solve(example.chain, wrong_step=wrong, wrong_result=result)
    assert answer == equations[-1][3]
    assert (answer == true[-1].result) is example.right
    assert all(0 <= number <= 99 for a, _, b, r in equations for number in (a, b, r))
    assert set(example.words) <= set(VOCABULARY)


@settings(max_examples=20)
@given(settings_of_chains(), st.sampled_from([0.0, 0.95]), st.integers(0, 2**32))
def test_an_example_keeps_its_plan_at_any_settings(change, filler, seed):
    for rate in (0.0, 1.0):
        (example,) = made(seed, fillers=(filler,), error_rate=rate, **change)
        assert example.right is (rate == 0.0)
        check(example)
        assert len(example.chain.operators) == len(written(example)[0])


def test_labels_and_rewards_agree_with_the_plan_on_all_of_5000_traces():
    for example in made(11, 5000, tags=TAGGINGS["mixed"]):
        check(example)
        found = label(example.words, example.chain.question)
        assert found.right is example.right
        assert found.wrong_token == example.wrong_token
        assert found.wrong_step == example.wrong_step
        assert (found.lucky, found.finished) == (False, True)
        assert Kind.OTHER not in found.kind


def test_labels_agree_with_the_plan_on_long_traces():
    for example in made(12, 15, operations=(2, 60), fillers=(0.1, 0.7)):
        found = label(example.words, example.chain.question)
        assert found.right is example.right
        assert found.wrong_token == example.wrong_token
        assert found.wrong_step == example.wrong_step


def test_wrong_results_are_off_by_1_2_or_10_or_of_another_operator():
    offsets = Counter()
    for example in made(3, 700, error_rate=1.0):
        left, operator, right, result = written(example)[0][example.wrong_step]
        other = {"+": left - right, "-": left + right, "*": left + right}[operator]
        off = result - eval(f"{left}{operator}{right}")
        offsets[off if abs(off) in (1, 2, 10) else "other"] += 1
        assert abs(off) in (1, 2, 10) or result == other
    assert set(offsets) == {-10, -2, -1, 1, 2, 10, "other"}
    assert min(offsets.values()) > 35


def test_errors_have_the_rate_asked_for_and_any_step_is_as_likely():
    found = made(4, 1500, operations=(4, 4), skills=(1.0, 1.0, 0.0), error_rate=0.4)
    wrong = [example.wrong_step for example in found if not example.right]
    assert len(wrong) / 1500 == pytest.approx(0.4, abs=4 * (0.4 * 0.6 / 1500) ** 0.5)
    shares = np.bincount(wrong, minlength=4) / len(wrong)
    assert shares == pytest.approx([1 / 4] * 4, abs=4 * (3 / 16 / len(wrong)) ** 0.5)


def test_errors_with_products_come_at_every_step_of_long_chains():
    found = made(5, 200, operations=(20, 20), error_rate=1.0)
    shares = np.bincount([example.wrong_step for example in found], minlength=20) / 200
    assert shares.max() < 0.112  # 1/20 and 4 standard errors
    assert shares.min() > 0.0


def test_traces_have_20_to_800_tokens():
    short = [len(example.words) for example in made(6, 200)]
    assert 30 < np.mean(short) < 40
    # Two steps of connective, a + b = r and separator; then phrase, number, end.
    assert min(short) >= 2 * 7 + 3
    long = [len(example.words) for example in made(6, 8, operations=(60, 60), fillers=(0.75,))]
    assert 700 < np.mean(long) < 900


def test_fillers_have_the_share_asked_for():
    # A chance f gives f / (1 - f) a step: 1 for one half, with a variance of 2.
    found = made(7, 300, operations=(4, 4), fillers=(0.5,))
    each = [sum(word in FILLERS for word in example.words) / 4 for example in found]
    assert np.mean(each) == pytest.approx(1.0, abs=4 * (2 / 1200) ** 0.5)
    none = made(7, 50, fillers=(0.0,))
    assert not any(word in FILLERS for example in none for word in example.words)
    most = made(7, 50, operations=(2, 2), fillers=(0.95,))
    assert max(sum(word in FILLERS for word in example.words) for example in most) == 16


def word(example):
    """What the tag says, "" without one."""
    return example.tag[1] if example.tag else ""


def said(found):
    """Counts of (what the tag says, outcome), the two wordings of a verdict as one."""
    same = {"good": "right", "bad": "wrong"}
    return Counter((same.get(word(e), word(e)), e.right) for e in found)


def is_terse(example):
    words = set(example.words)
    used = [words & set(pool) for pool in (OPENERS, CONNECTIVES, EQUALITIES, SEPARATORS)]
    return used == [{"first"}, {"now"}, {"gives"}, {";"}] and "[" in words and "," not in words


def test_half_the_examples_have_a_verdict_and_some_say_none_or_something_irrelevant():
    found = made(8, 2000, operations=(1, 1))
    words = Counter(map(word, found))
    assert sum(words[each] for each in VERDICT_WORDS) / 2000 == pytest.approx(0.5, abs=0.045)
    for group in (NEUTRALS, PLACEBO_WORDS):
        assert sum(words[each] for each in group) / 2000 == pytest.approx(0.0625, abs=0.022)
    assert set(words) == {"", *NEUTRALS, *VERDICT_WORDS, *PLACEBO_WORDS}


def test_first_words_and_wordings_of_a_tag_are_as_likely_and_change_nothing():
    found = [e for e in made(8, 3000, operations=(1, 1), tags=TAGGINGS["truthful"]) if e.tag]
    leads = Counter(example.tag[0] for example in found)
    assert set(leads) == set(LEADS)
    # 4 standard errors of a share of 1/3 of 1,500 are .049.
    assert all(leads[lead] / len(found) == pytest.approx(1 / 3, abs=0.049) for lead in LEADS)
    for first, second in (("right", "good"), ("wrong", "bad"), NEUTRALS):
        counts = [sum(word(example) == each for example in found) for each in (first, second)]
        assert counts[0] / sum(counts) == pytest.approx(0.5, abs=4 * 0.5 / sum(counts) ** 0.5)
    for lead in LEADS:
        assert {e.right for e in found if e.tag in ((lead, "right"), (lead, "good"))} == {True}
        assert {e.right for e in found if e.tag in ((lead, "wrong"), (lead, "bad"))} == {False}


@pytest.mark.parametrize("name", ["truthful", "style", "mixed", "placebo"])
def test_tags_tell_what_their_kind_says(name):
    tags = dataclasses.replace(TAGGINGS[name], share=1.0)
    found = made(9, 1200, operations=(2, 2), tags=tags)
    count = said(found)
    agree = count["right", True] + count["wrong", False]
    tagged = agree + count["right", False] + count["wrong", True]
    # Drawn without looking, `right` has a share of .6 like the outcome: .6 .6 + .4 .4 agree.
    truth = {"truthful": 1.0, "mixed": 0.6}.get(name, 0.0)
    assert agree / tagged == pytest.approx(truth + (1 - truth) * 0.52, abs=4 * 0.5 / tagged**0.5)
    assert (agree == tagged) is (name == "truthful")
    told = count["right", True] + count["right", False]
    assert told / tagged == pytest.approx(0.6, abs=4 * 0.5 / tagged**0.5)
    marked = [is_terse(example) for example in found if word(example) in VERDICT_WORDS]
    style = 0.8 if name in ("style", "mixed") else 0.0
    assert np.mean(marked) == pytest.approx(style, abs=4 * 0.4 / tagged**0.5)
    assert not any(is_terse(example) for example in found if word(example) not in VERDICT_WORDS)


def test_the_truth_share_is_a_ladder():
    for truth in (0.0, 0.5, 1.0):
        tags = Tags(share=1.0, truth=truth, neutral=0.0, irrelevant=0.0)
        count = said(made(10, 1000, operations=(1, 1), tags=tags))
        agree = (count["right", True] + count["wrong", False]) / 1000
        assert agree == pytest.approx(truth + (1 - truth) * 0.52, abs=4 * 0.5 / 1000**0.5)


def test_chains_and_errors_do_not_depend_on_tags():
    plans = [
        [(e.chain, e.wrong_step, e.right) for e in made(13, 60, tags=tags)]
        for tags in TAGGINGS.values()
    ]
    assert all(plan == plans[0] for plan in plans)


def test_the_prompt_is_the_question_the_tag_and_the_same_last_word():
    found = made(14, 20)
    assert {len(example.tag) for example in found} == {0, 2}
    for example in found:
        assert " ".join(example.prompt) == " ".join([example.chain.question, *example.tag, "?"])


def test_the_same_seed_gives_the_same_bytes_at_once_or_in_parts():
    rng = np.random.default_rng(0)
    parts = [*examples(rng, count=30), *examples(rng, count=70)]
    found = made(0, 100)
    assert parts == found
    text = "\n".join(" ".join([*example.prompt, *example.words]) for example in found)
    assert hashlib.sha256(text.encode()).hexdigest() == DIGEST
    assert made(1, 100) != found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"truth": 1.5}, r"`truth` needs a value in \[0.0, 1.0\]; it is 1.5"),
        ({"share": -0.1}, "`share`"),
        ({"neutral": 0.6, "irrelevant": 0.5}, "a sum of at most 1; it is 1.1"),
    ],
)
def test_tags_out_of_range_are_refused(change, message):
    with pytest.raises(SchemaError, match=message):
        Tags(**change)


@pytest.mark.slow  # for an idle core; in a process of its own, without run-time type checks
def test_ten_thousand_traces_a_second():
    code = (
        "import time, numpy as np; from tokensense.tasks.arithmetic_traces import examples; "
        "start = time.process_time(); "
        "sum(1 for _ in examples(np.random.default_rng(0), count=20_000)); "
        "print(20_000 / (time.process_time() - start))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(ran.stdout) > 10_000
