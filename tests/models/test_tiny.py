import json
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

import tokensense
from tokensense.errors import PolicyError
from tokensense.models import tiny
from tokensense.models.policy import Policy, load_policy
from tokensense.probes import CATALOGUE
from tokensense.probes.comparability import Prompt, Response, limits, verdicts
from tokensense.rollouts.generate import generate
from tokensense.rollouts.trajectory import Imported, assemble
from tokensense.schema import Comparability
from tokensense.tasks import arithmetic, tables
from tokensense.tasks.arithmetic_traces import TAGGINGS, examples
from tokensense.tasks.tables_examples import draw_examples

ROOT = Path(tokensense.__file__).parents[1]
NAMES = ["tiny:mixed", "tiny:placebo", "tiny:style", "tiny:tables", "tiny:truthful"]
WORDS = {"arithmetic": arithmetic.VOCABULARY, "tables": tables.VOCABULARY}
QUESTIONS = {"arithmetic": "1 2 + 7 * 3", "tables": "q 3 F2 P0_o1 P1_o5"}


@pytest.fixture(scope="module", params=list(WORDS))
def policy(request):
    """Random weights over the words of a task."""
    model, tokenizer = tiny.new_model(WORDS[request.param], tiny.SIZES[request.param], seed=0)
    return Policy(model, tokenizer, name="new", wordings=request.param)


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


def card(name):
    return json.loads((tiny.folder(name) / tiny.CARD).read_text("utf-8"))


# A new model and its tokenizer


def parameters(size, words):
    """Tied embeddings; a layer: attention, norms of queries and keys, feed-forward, 2 norms."""
    head = size.hidden // size.heads
    layer = 4 * size.hidden**2 + 2 * head + 3 * size.hidden * size.inner + 2 * size.hidden
    return words * size.hidden + size.layers * layer + size.hidden


def test_a_new_model_has_the_size_asked_for(policy):
    counted = sum(p.numel() for p in policy.model.parameters())
    assert counted == parameters(tiny.SIZES[policy.wordings], len(WORDS[policy.wordings]))
    assert counted == {"arithmetic": 376_704, "tables": 117_760}[policy.wordings]
    assert policy.context_length == 1024


def test_the_seed_makes_the_weights_and_leaves_torchs_own_generator():
    size = tiny.Size(hidden=8, layers=1, heads=2, inner=8)
    before = torch.random.get_rng_state()
    first, again, other = (
        Policy(*tiny.new_model(arithmetic.VOCABULARY, size, seed=seed), name="x").digest
        for seed in (3, 3, 4)
    )
    assert first == again != other
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_id_of_a_word_is_its_place_and_its_bytes_carry_a_blank(policy):
    words = WORDS[policy.wordings]
    assert policy.encode(" ".join(words)) == list(range(len(words)))
    assert [policy.token_bytes(i).decode() for i in range(len(words))] == [
        word if word.startswith("<") else f" {word}" for word in words
    ]
    assert (policy.bos_id, policy.tokenizer.eos_token, policy.tokenizer.pad_token) == (
        *(None, "<eos>", "<pad>"),
    )


def test_unknown_words_are_one_token_and_any_white_space_divides(policy):
    assert policy.encode("\n 1\t\n 2  zebra, <eos>\n") == policy.encode("1 2 <unk> <eos>")
    assert policy.encode("") == []


@given(data=st.data())
def test_joined_bytes_are_encoded_to_the_same_ids(policy, data):
    ids = data.draw(st.lists(st.integers(0, len(WORDS[policy.wordings]) - 1), max_size=30))
    text = b"".join(map(policy.token_bytes, ids)).decode()
    assert policy.encode(text) == ids
    again, spans = policy.encode_with_offsets(text)
    assert again == ids
    assert "".join(text[start:end] for start, end in spans) == text


def test_a_prompt_is_question_insert_and_the_same_last_word(policy):
    question = QUESTIONS[policy.wordings]
    plain, told = policy.render(question), policy.render(question, insert="wrong")
    assert plain == policy.encode(f"{question} ?")
    assert told == policy.encode(f"{question} wrong ?")


def test_prompts_are_those_that_are_taught():
    model = tiny.new_model(arithmetic.VOCABULARY, tiny.Size(8, 1, 2, 8), seed=0)
    made = Policy(*model, name="x", wordings="arithmetic")
    rng = np.random.default_rng(0)
    for e in examples(rng, count=30, tags=TAGGINGS["mixed"]):
        taught = [arithmetic.VOCABULARY.index(word) for word in e.prompt]
        assert made.render(e.chain.question, insert=" ".join(e.tag)) == taught
    made = Policy(*tiny.new_model(tables.VOCABULARY, tiny.Size(8, 1, 2, 8), seed=0), name="x")
    regime = tables.Regime(lookups=3)
    facts, chains = (
        tables.plant_facts(regime, rng),
        tables.draw_chains(regime, count=30, generator=rng),
    )
    for e in draw_examples(facts, regime, chains=chains, generator=rng):
        taught = list(tables.prompt(e.chain, e.tag))
        assert made.render(tables.question(e.chain), insert=e.tag) == taught


@pytest.mark.parametrize("probe", ["opposed", "placebo", "neutral"])
def test_conditions_are_equally_long_known_words_and_comparable(policy, probe):
    question = QUESTIONS[policy.wordings]
    conditions = CATALOGUE[probe](policy)
    prompts = [Prompt(c, c.text, tuple(policy.render(question, insert=c.text))) for c in conditions]
    assert len({len(prompt.ids) for prompt in prompts}) == 1
    assert len({prompt.ids for prompt in prompts}) == len(prompts)
    assert policy.encode("<unk>")[0] not in {i for prompt in prompts for i in prompt.ids}
    bound = limits(policy, bos_id=policy.bos_id)
    assert bound.opener == 1
    found = verdicts(
        policy.render(question), prompts, [Response(" first 1 2 + 7 = 1 9 .", 9)], limits=bound
    )
    assert set(found.ravel().tolist()) == {Comparability.OK}


def test_plain_transformers_loads_a_saved_folder(policy, tmp_path):
    policy.model.save_pretrained(tmp_path)
    policy.tokenizer.save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, local_files_only=True)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTIONS[policy.wordings]}],
        tokenize=False,
        add_generation_prompt=True,
    )
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert ids == policy.render(QUESTIONS[policy.wordings])
    assert model.generation_config.eos_token_id == policy.tokenizer.eos_token_id
    loaded = load_policy(tmp_path)
    assert (loaded.digest, loaded.tokenizer_digest) == (policy.digest, policy.tokenizer_digest)
    assert loaded.wordings == "english"  # no card
    (tmp_path / tiny.CARD).write_text(json.dumps({"wordings": policy.wordings}))
    assert load_policy(tmp_path).wordings == policy.wordings


# What is shipped


def test_a_bundled_policy_is_what_its_card_says(name):
    loaded, facts = load_policy(name), card(name)
    assert (loaded.name, loaded.wordings) == (name, facts["task"])
    assert facts["name"] == name
    assert (loaded.digest, loaded.tokenizer_digest) == (facts["digest"], facts["tokenizer_digest"])
    assert loaded.digest in (tiny.folder(name) / "README.md").read_text("utf-8")
    assert sum(p.numel() for p in loaded.model.parameters()) == facts["parameters"]
    by_folder = load_policy(tiny.folder(name))
    assert by_folder.digest == loaded.digest
    assert loaded.encode(" ".join(WORDS[facts["task"]])) == list(range(len(WORDS[facts["task"]])))


def test_bundled_policies_are_those_of_the_plan():
    assert tiny.shipped() == NAMES


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(PolicyError, match=r"one of tiny:mixed, .*; it is 'tiny:giant'"):
        load_policy("tiny:giant")
    with pytest.raises(PolicyError, match=r"it is 'tiny:\.\./tiny/mixed'"):
        load_policy("tiny:../tiny/mixed")


def test_measured_accuracies_are_in_the_planned_range():
    measured = {name: card(name)["measured"] for name in NAMES}
    for name, found in measured.items():
        share = {told: row["right"] for told, row in found.items()}
        low, high = (0.15, 0.25) if name == "tiny:tables" else (0.35, 0.6)
        assert low <= share["none"] <= high, name
        # 4 standard errors of a difference of two shares of 1,024.
        apart = 4 * 2**0.5 * found["pos"]["se"]
        if name in ("tiny:truthful", "tiny:mixed"):
            assert share["pos"] - share["neg"] > apart, name
        elif name in ("tiny:style", "tiny:placebo"):
            assert abs(share["pos"] - share["neg"]) < apart, name
        assert abs(share["neutral"] - share["none"]) < apart, name
        assert abs(share["placebo"] - share["none"]) < apart, name


def test_sampled_traces_read_as_text_and_come_back(name):
    loaded = load_policy(name)
    rng = np.random.default_rng(0)
    if loaded.wordings == "tables":
        facts = tables.plant_facts(tables.Regime(), np.random.default_rng(tables.WORLD_SEED))
        chains = tables.draw_chains(tables.REGIMES["C"], count=6, generator=rng, distinct=True)
        problems = [tables.as_problem(chain, facts) for chain in chains]
    else:
        problems = arithmetic.problems(rng, count=6)
    traces = list(generate(loaded, problems, group=2, max_new_tokens=80, batch=12))
    assert assemble(Imported(problems, traces), loaded).attrs["text_mismatch"] == 0
    end = loaded.tokenizer.eos_token_id
    for trace in traces:
        assert loaded.encode(trace.text) == [token for token in trace.ids if token != end]


def test_the_wheel_takes_the_policies_along():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    wheel = settings["tool"]["hatch"]["build"]["targets"]["wheel"]
    taken = wheel["force-include"]
    assert taken["data/tiny"] == "tokensense/data/tiny"
    assert all(inside == f"tokensense/{path}" for path, inside in taken.items())
    assert all((ROOT / path).exists() for path in taken)


@pytest.mark.slow  # builds a wheel
def test_a_wheel_loads_them_by_name(tmp_path):
    build = "from hatchling.build import build_wheel; import sys; print(build_wheel(sys.argv[1]))"
    ran = subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    with zipfile.ZipFile(tmp_path / ran.stdout.strip().splitlines()[-1]) as wheel:
        wheel.extractall(tmp_path / "site")
    assert not list((tmp_path / "site/tokensense/data").rglob("*.pt"))
    code = (
        "import tokensense; print(tokensense.load_policy('tiny:mixed').digest, tokensense.__file__)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=True,
    )
    digest, where = ran.stdout.split()
    assert digest == card("tiny:mixed")["digest"]
    assert where.startswith(str(tmp_path))
