import json

import pytest

from tokensense.errors import ConditionError
from tokensense.probes.conditions import Condition, insert_text
from tokensense.probes.templates import from_dicts, from_file

YAML = r"""
- name: praised
  text: 'Label: {word}. \boxed{{answer}} {not_a_name} \1'
  family: mood
  level: pos
  frame: label
  wording: good_bad
  tone: praise
  placement: user_start
  word: good
- name: plain
  text: "Q: {question}"
- name: scolded
  text: 'Label: {word}. \boxed{{answer}} {not_a_name} \1'
  family: mood
  level: neg
  frame: label
  wording: good_bad
  tone: blame
  placement: user_start
  word: bad
"""


def record(**fields):
    return {"name": "a", "text": "Some text.", **fields}


def test_a_file_says_all_there_is_to_a_condition(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(YAML, encoding="utf-8")
    first, plain, last = from_file(path)
    assert first == Condition(
        name="praised",
        text=r"Label: {word}. \boxed{{answer}} {not_a_name} \1",
        family="mood",
        level="pos",
        frame="label",
        wording="good_bad",
        tone="praise",
        placement="user_start",
        word="good",
    )
    assert plain == Condition("plain", "Q: {question}", "user", "none", "none", "none")
    assert last.word == "bad"
    told = insert_text(first, {"question": "?", "answer": r"\frac{1}{2}", "wrong_answer": None})
    assert told == r"Label: good. \boxed{\frac{1}{2}} {not_a_name} \1"


def test_json_and_yaml_and_dicts_say_the_same(tmp_path):
    records = [record(), record(name="b", text='{"json": "\\\\"}')]
    (tmp_path / "a.json").write_text(json.dumps(records), encoding="utf-8")
    (tmp_path / "a.yml").write_text(json.dumps(records), encoding="utf-8")
    assert from_file(tmp_path / "a.json") == from_file(tmp_path / "a.yml") == from_dicts(records)


def test_a_word_may_look_like_a_placeholder():
    (one,) = from_dicts([record(text="{word}", word="{answer}")])
    assert insert_text(one, {"question": "?", "answer": "7", "wrong_answer": None}) == "{answer}"


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([record(colour="red")], r"record 0, `colour`: Extra inputs.*it is 'red'"),
        ([{"name": "a"}], r"`text`: Field required; it is 'nothing'"),
        ([record(), record(name="two words")], r"record 1, `name`: String should match"),
        ([record(name="")], r"`name`: String should match"),
        ([record(family="a{b}")], r"`family`"),
        ([record(level="positive")], r"`level`: Input should be 'pos', 'neg' or 'none'"),
        ([record(placement="assistant")], r"`placement`: .*it is 'assistant'"),
        ([record(text="")], r"`text`: String should have at least 1 character"),
        ([record(text=" \n")], r"needs a name of its own, not `base`, and a text"),
        ([record(wording=True)], r"`wording`: Input should be a valid string; it is True"),
        ([record(text=5)], r"`text`: Input should be a valid string; it is 5"),
        ([record(text="It is {word}.")], r"`word`: a word is needed exactly where"),
        ([record(word="x")], r"`word`: a word is needed exactly where"),
        ([record(name="base")], r"not `base`"),
        ([record(), record()], r"`a` is there 2 times"),
        ([record(level="pos")], r"user/none/none/user_end has pos in tones \['none'\]"),
        ([], "at least one condition"),
        (["text"], r"record 0, `record`: Input should be a valid dictionary"),
    ],
)
def test_what_is_not_a_condition_is_refused_by_record_and_key(records, message, tmp_path):
    # As a file: nothing but JSON can come in, so the type checker of the tests does not stop it.
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(records), encoding="utf-8")
    with pytest.raises(ConditionError, match=message) as caught:
        from_file(path)
    assert "mine.json" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"name: a", r"mine.yaml needs a list of records .* it holds dict"),
        (b"", r"it holds NoneType"),
        (b"- {text: [", "readable YAML or JSON"),
        (b"\xff\xfe- name", "readable YAML or JSON"),
        (b"- !!python/object/apply:os.system ['true']", "readable YAML or JSON"),
        (b"# " + b"x" * 2**20, "at most 1048576 bytes"),
    ],
)
def test_files_that_hold_something_else_are_refused(content, message, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_bytes(content)
    with pytest.raises(ConditionError, match=message):
        from_file(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConditionError, match=r"nowhere\.yaml"):
        from_file(tmp_path / "nowhere.yaml")
