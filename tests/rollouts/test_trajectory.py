import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.builders import END, ByteEncoder, ListEncoder, imported, problems
from tokensense.errors import InputError, PolicyError
from tokensense.rollouts.table import response_texts, text_of, texts
from tokensense.rollouts.trajectory import Imported, Trace, assemble
from tokensense.schema import ROLLOUTS, Finish, IdsOrigin, Kind, Label
from tokensense.segments import offsets
from tokensense.tasks.problem import Problem

UNICODE = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30)


class TrainedEncoder(ByteEncoder):
    """A byte-level BPE of 300 tokens, trained on the spot: whole words, and parts of characters."""

    name = "trained"

    def __init__(self):
        self.tokenizer = Tokenizer(models.BPE())
        self.tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=300, initial_alphabet=alphabet, show_progress=False
        )
        lines = ["So the answer is 12.", "Let's see, 3 + 4 = 7, so it is 7. 😀😀 é é"] * 4
        self.tokenizer.train_from_iterator(lines, trainer)
        self.byte_of = {}
        printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        hidden = [b for b in range(256) if b not in printable]
        self.byte_of |= {chr(b): b for b in printable}
        self.byte_of |= {chr(256 + i): b for i, b in enumerate(hidden)}

    def encode(self, text):
        return self.tokenizer.encode(text).ids

    def token_bytes(self, token_id):
        return bytes(self.byte_of[c] for c in self.tokenizer.id_to_token(token_id))

    def plain_text(self, ids):
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def encode_with_offsets(self, text):
        encoding = self.tokenizer.encode(text)
        return encoding.ids, encoding.offsets

    def render(self, question, *, insert="", placement="user_end"):
        return self.encode(question + insert)


@pytest.fixture(scope="module")
def trained():
    return TrainedEncoder()


def one(text="", **fields):
    return Imported([Problem("p", "What?", "1")], [Trace("p", "t", text, **fields)])


def test_the_node_is_exactly_what_the_schema_says():
    found = assemble(imported(3, group=4), ByteEncoder())
    assert list(found.data_vars) == list(ROLLOUTS)
    assert not found.coords  # nothing becomes an index by accident
    for name, variable in ROLLOUTS.items():
        assert found[name].dims == variable.dims, name
        assert found[name].dtype == variable.dtype, name
        assert found[name].attrs["units"] == variable.units, name
        assert found[name].attrs["description"] == variable.description, name
    assert found["length"].attrs["sample_dimension"] == "token"
    assert found["finish"].attrs["flag_values"] == [0, 1, 2, 3]
    assert found["finish"].attrs["flag_meanings"] == "unknown stop length abort"
    assert found["kind"].attrs["flag_values"] == [int(kind) for kind in Kind]
    assert found["length"].sum() == found.sizes["token"]
    assert found["prompt_length"].sum() == found.sizes["prompt_token"]
    assert found["text_length"].sum() == found.sizes["byte"]


def test_two_runs_give_identical_datasets():
    first, again = (assemble(imported(3), ByteEncoder()) for _ in range(2))
    assert first.identical(again)


@pytest.mark.parametrize("made", [Imported([], []), Imported(problems(2), [])])
def test_no_problem_or_no_rollout_is_a_node_too(made):
    found = assemble(made, ByteEncoder())
    assert found.sizes["problem"] == len(made.problems)
    assert found.sizes["rollout"] == found.sizes["token"] == found.sizes["vocab"] == 0
    assert [found[name].dtype for name in ROLLOUTS] == [v.dtype for v in ROLLOUTS.values()]


def test_rollouts_of_a_problem_lie_together_in_file_order_and_no_problem_is_lost():
    made = problems(3)
    order = [("p2", "a"), ("p0", "b"), ("p2", "c"), ("p0", "d")]
    found = assemble(
        Imported(made, [Trace(problem, name, name * 2) for problem, name in order]), ByteEncoder()
    )
    assert text_of(found, "problem_name") == ["p0", "p1", "p2"]
    assert found["problem_of"].values.tolist() == [0, 0, 2, 2]
    assert text_of(found, "rollout_name") == ["b", "d", "a", "c"]
    assert response_texts(found) == [b"bb", b"dd", b"aa", b"cc"]


def test_cluster_is_the_question_text():
    made = [Problem(name, q, None) for name, q in [("a", "x?"), ("b", "y?"), ("c", " x? ")]]
    assert assemble(Imported(made, []), ByteEncoder())["cluster"].values.tolist() == [0, 1, 0]


def test_prompts_are_the_rendered_questions():
    encoder, made = ByteEncoder(), problems(2)
    found = assemble(Imported(made, []), encoder)
    bound = offsets(found["prompt_length"].values)
    for k, problem in enumerate(made):
        ids = found["prompt_id"].values[bound[k] : bound[k + 1]].tolist()
        assert ids == encoder.render(problem.question)


def test_every_field_of_a_trace_is_kept():
    trace = Trace(
        "p",
        "t",
        "ab",
        reward=0.0,
        generator="g",
        finish=Finish.LENGTH,
        label=Label.ERROR,
        wrong_step=1,
        steps=((0, 1), (1, 2)),
    )
    plain = Trace("p", "u", "")
    found = assemble(Imported([Problem("p", "?", "1", source="s")], [trace, plain]), ByteEncoder())
    assert found["reward"].values[0] == 0.0
    assert np.isnan(found["reward"].values[1])
    assert text_of(found, "generator") == ["g", ""]
    assert found["finish"].values.tolist() == [Finish.LENGTH, Finish.UNKNOWN]
    assert found["label"].values.tolist() == [Label.ERROR, Label.UNLABELED]
    assert found["wrong_step"].values.tolist() == [1, -1]
    assert found["length"].values.tolist() == [2, 0]
    assert found["step"].values.tolist() == [0, 1]


def test_what_a_generator_and_a_sampler_know_is_kept_and_overrides_the_rules():
    known = Trace(
        "p",
        "t",
        "1a",
        ids=(49, 97, END),
        label=Label.ERROR,
        wrong_step=3,
        wrong_token=1,
        kinds=(Kind.COMPUTED_DIGIT, Kind.DISCOURSE, Kind.FORMAT),
        token_steps=(3, 3, -1),
        logps=(-0.5, -1.25, 0.0),
    )
    plain = Trace("p", "u", "1a")
    found = assemble(Imported([Problem("p", "?", "1")], [known, plain]), ByteEncoder())
    assert found["wrong_token"].values.tolist() == [1, -1]
    assert found["wrong_step"].values.tolist() == [3, -1]
    assert found["kind"].values[:3].tolist() == list(known.kinds)
    assert found["kind"].values[3] == Kind.DIGIT  # by the rules
    assert found["step"].values.tolist() == [3, 3, -1, -1, -1]
    np.testing.assert_array_equal(found["sampled_logp"], [-0.5, -1.25, 0.0, np.nan, np.nan])


def test_attributes_say_where_it_came_from():
    made = replace(imported(2), set_aside={"contradiction": 2, "a": 1}, refused=["f:1: x"])
    attrs = assemble(made, ByteEncoder()).attrs
    assert attrs == {
        "sampled_by": ["a", "b"],
        "source": ["made up"],
        "set_aside": '{"a": 1, "contradiction": 2}',
        "refused": 1,
        "tokenizer": "bytes",
        "tokenizer_digest": "bytes-1",
        "text_mismatch": 0,
    }
    assert json.loads(json.dumps(attrs)) == attrs  # any store can hold them


def test_exact_ids_are_kept_even_where_the_text_would_encode_otherwise():
    # "ab" as one token is what the tokenizer would give; the sampler gave "a", "b", end.
    encoder = ListEncoder(["a", "b", "ab", "<end>"])
    made = Imported(
        [Problem("p", "a", None)],
        [Trace("p", "exact", "ab", ids=(0, 1, 3)), Trace("p", "text", "ab")],
    )
    found = assemble(made, encoder)
    assert found["token_id"].values.tolist() == [0, 1, 3, 2]
    assert found["ids_origin"].values.tolist() == [IdsOrigin.EXACT, IdsOrigin.RETOKENIZED]
    assert response_texts(found) == [b"ab<end>", b"ab"]
    assert found.attrs["text_mismatch"] == 0  # an end token after the text is no mismatch


def test_exact_ids_that_do_not_begin_with_the_text_are_counted():
    found = assemble(one("ab", ids=tuple(b"ax")), ByteEncoder())
    assert response_texts(found) == [b"ax"]
    assert found.attrs["text_mismatch"] == 1


def test_large_ids_are_not_wrapped():
    class Wide(ByteEncoder):
        def token_bytes(self, token_id):
            return b"x"

    ids = (151_643, 2**31 - 1, 0)
    found = assemble(one(ids=ids), Wide())
    assert tuple(found["token_id"].values.tolist()) == ids
    assert found["vocab_id"].values.tolist() == sorted(ids)


@pytest.mark.parametrize("bad", [-1, 2**31])
def test_ids_that_do_not_fit_are_refused_with_the_rollouts_name(bad):
    with pytest.raises(InputError, match=rf"'t' of problem 'p' needs .*; token 1 has id {bad}"):
        assemble(one(ids=(5, bad)), ByteEncoder())


def test_steps_of_exact_ids_are_counted_in_what_the_ids_decode_to():
    # The text has no end token, as decoders strip it; the end token then has no step.
    ids = (*"é.\nb".encode(), END)
    found = assemble(one("é.\nb", ids=ids, steps=((0, 2), (3, 4)), wrong_step=1), ByteEncoder())
    assert found["step"].values.tolist() == [0, 0, 0, 0, 1, -1]


def test_a_blank_that_the_ids_add_in_front_moves_the_steps():
    encoder = ListEncoder([" a", "b"])
    found = assemble(one("ab", ids=(0, 1), steps=((0, 1), (1, 2))), encoder)
    assert found["step"].values.tolist() == [0, 1]


def test_steps_in_a_text_that_the_ids_do_not_give_are_refused():
    with pytest.raises(InputError, match="decode to 'xy', the text is 'ab'"):
        assemble(one("ab", ids=tuple(b"xy"), steps=((0, 2),)), ByteEncoder())


def test_offsets_of_the_encoder_serve_where_its_bytes_are_not_the_text():
    class Lower(ByteEncoder):  # a normalizer: the bytes of the tokens are not those of the text
        def encode(self, text):
            return super().encode(text.lower())

    found = assemble(one("Ab C", steps=((0, 2), (3, 4))), Lower())
    assert found["step"].values.tolist() == [0, 0, 0, 1]
    assert found.attrs["text_mismatch"] == 1


@pytest.mark.parametrize("answer", [([97, 98], []), ([97], [(0, 1)])])
def test_an_encoder_without_one_offset_a_token_is_refused(answer):
    class Short(ByteEncoder):
        def encode(self, text):
            return super().encode(text.lower())

        def encode_with_offsets(self, text):
            return answer

    message = f"`bytes` gives {len(answer[1])} offsets for 2 tokens"
    with pytest.raises(PolicyError, match=message):
        assemble(one("AB", steps=((0, 2),)), Short())


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            Imported([Problem("p", "a", None), Problem("p", "b", None)], []),
            "'p' is the name of problems 0 and 1",
        ),
        (Imported([], [Trace("q", "t", "")]), "needs a problem that was imported; it names 'q'"),
        (one("a\ud800"), "'t' of problem 'p' needs to be valid Unicode.* at character 1"),
        (one(generator="\ud800"), "'t' of problem 'p' needs to be valid Unicode"),
        (Imported([Problem("\udc80", "", None)], []), "name of problem .* needs to be valid"),
        (Imported([Problem("p", "\udc80", None)], []), "question of problem 'p' needs to be"),
        (Imported([Problem("p", "", "\udc80")], []), "answer of problem 'p' needs to be"),
        (one("ab", steps=((0, 3),)), r"step 0 is \[0, 3\)"),
        (one("ab", steps=((1, 2), (0, 1))), r"step 1 is \[0, 1\) after character 2"),
        (one("ab", steps=((0, 2),), wrong_step=1), "wrong step of -1 to 0; it has 1"),
        (one("ab", wrong_step=-2), "it has -2"),
        (one("ab", wrong_token=2), "wrong token of -1 to 1; it has 2"),
        (one("", wrong_token=0), "it has 0"),
        (one("ab", wrong_token=-2), "it has -2"),
        (one("ab", kinds=(1,)), "entry a token in `kinds`; it has 1 for 2"),
        (one("ab", token_steps=(1, 1, 1)), "in `token_steps`; it has 3 for 2"),
        (one("ab", logps=()), "in `logps`; it has 0 for 2"),
        (one("ab", reward=float("inf")), "'t' needs a finite reward or NaN; it has inf"),
    ],
)
def test_what_cannot_be_frozen_is_refused_by_name(made, message):
    with pytest.raises(InputError, match=message):
        assemble(made, ByteEncoder())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(rows=st.lists(UNICODE, max_size=4), question=UNICODE, answer=st.none() | UNICODE)
def test_texts_go_in_and_come_out(trained, rows, question, answer):
    made = Imported(
        [Problem("p", question, answer)],
        [Trace("p", str(k), text, generator=text) for k, text in enumerate(rows)],
    )
    for encoder in (ByteEncoder(), trained):
        found = assemble(made, encoder)
        assert [raw.decode() for raw in response_texts(found)] == rows
        assert text_of(found, "question") == [question]
        assert text_of(found, "generator") == rows
        row = found["answer"].values[0]
        assert (None if row == -1 else texts(found)[row].decode()) == answer
        assert found.attrs["text_mismatch"] == 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(parts=st.lists(UNICODE, min_size=1, max_size=4))
def test_every_token_of_a_step_that_fills_the_text_has_it(trained, parts):
    ends = np.cumsum([len(part) for part in parts]).tolist()
    steps = tuple(zip([0, *ends], ends, strict=False))
    text = "".join(parts)
    for encoder in (ByteEncoder(), trained):
        found = assemble(one(text, steps=steps), encoder)
        assert (found["step"].values >= 0).all()
        assert (np.diff(found["step"].values) >= 0).all()
        # A part whose tokens are its bytes has exactly as many tokens as bytes.
    counts = np.bincount(
        assemble(one(text, steps=steps), ByteEncoder())["step"].values, minlength=len(parts)
    )
    assert counts.tolist() == [len(part.encode()) for part in parts]


def test_an_id_of_another_policy_is_named_with_its_rollout():
    class Narrow(ByteEncoder):
        def token_bytes(self, token_id):
            raise PolicyError(f"needs an id in [0, 260); it is {token_id}")

    foreign = Imported([Problem("p", "1 + 1?", "2")], [Trace("p", "r7", "", ids=(999,))])
    with pytest.raises(PolicyError, match=r"rollout 'r7' of problem 'p'.*999"):
        assemble(foreign, Narrow())
