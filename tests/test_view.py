"""A page from a store: which problems, what the store knows of their tokens, what is said."""

import numpy as np
import pytest
from typer.testing import CliRunner

import tokensense as ts
from tests.figures.pages import Page
from tests.probes.tiny import tiny_policy
from tests.test_study import FIELDS, write_traces
from tokensense.cli import app
from tokensense.errors import SchemaError, StoreError
from tokensense.rollouts.table import response_texts
from tokensense.stats.describe import token_states

PROBLEMS = 4


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Four problems with two traces each, probed and weighed."""
    folder = tmp_path_factory.mktemp("view")
    found, policy = ts.Study(folder / "s.zarr"), tiny_policy()
    traces = write_traces(folder / "traces.jsonl")
    found.ingest(traces, format="jsonl", policy=policy, fields=FIELDS, limit=PROBLEMS)
    found.probe(policy, ["opposed", "placebo"], frames=1, families=3, progress=False)
    ts.assign_credit(found, ["uniform", "cscr"])
    return found


@pytest.fixture(scope="module")
def whole(study):
    """The page of all of them."""
    return read(study.view())


def read(view):
    return Page(view.html)


def test_the_traces_of_the_store_stand_there_byte_for_byte(study, whole):
    expected = response_texts(study.archive().rollouts())
    assert [b"".join(t.raw for t in trace) for trace in whole.traces] == expected
    assert whole.text["h3"] == ["✓ right", "✗ wrong"] * PROBLEMS


def test_numbers_and_states_are_those_of_all_tokens_whatever_is_shown(study, whole):
    tokens = study.tokens()
    states = token_states(tokens)
    last = int(np.flatnonzero(tokens["rollout"].values == 2 * PROBLEMS - 2)[0])
    name = whole.text["h2"][-1].removeprefix("Problem ")
    shown = read(study.view(problem=name)).traces[0][0]
    assert f"contrast {float(states['contrast'][last]):+.4f} nats" in shown.note
    assert f"floor {float(states['floor'][last]):.4f} nats" in shown.note
    assert ("u" in shown.classes) == (int(states["state"][last]) == 1)
    weight = study.archive().read("/credit/cscr")["weight"].values[last]
    assert f"cscr {weight:.4g}" in shown.note
    assert "uniform 1" in shown.note


def test_it_says_who_wrote_who_scored_and_what_is_left_out(study, whole):
    said = "".join(read(study.view(limit=1)).text["p"])
    assert "Tokens by m1, m2; scored by tiny, which is not known to have drawn them" in said
    assert f"1 of the store's {PROBLEMS} problems." in said
    assert "Reconstructions, part of the formula is a guess: cscr." in said
    assert "of the store's" not in "".join(whole.text["p"])


def test_problems_are_named_or_counted(study, whole):
    names = [text.removeprefix("Problem ") for text in whole.text["h2"]]
    assert len(names) == PROBLEMS
    chosen = read(study.view(problem=[names[3], names[1]]))
    assert chosen.text["h2"] == [f"Problem {names[1]}", f"Problem {names[3]}"]
    with pytest.raises(SchemaError, match=r"\['none'\] are none of its 4\. The first are"):
        study.view(problem="none")
    with pytest.raises(SchemaError, match="limit"):
        study.view(limit=0)


def test_with_the_base_probe_alone_there_is_surprisal_and_the_reason(tmp_path, study):
    bare, policy = ts.Study(tmp_path / "b.zarr"), tiny_policy()
    traces = write_traces(tmp_path / "traces.jsonl")
    bare.ingest(traces, format="jsonl", policy=policy, fields=FIELDS, limit=2)
    with pytest.raises(StoreError, match="probe"):
        bare.view()
    bare.probe(policy, ["neutral"], frames=1, progress=False)
    found = read(bare.view())
    assert found.text["label"][:3] == [" surprisal", " entropy", " nothing"]
    assert "No shifts and contrasts: The triple needs a pair" in "".join(found.text["p"])
    bare.probe(policy, ["opposed"], frames=1, progress=False)
    found = read(bare.view())
    assert found.text["label"][0] == " contrast"
    assert "no wording floor: it needs 3 placebo families" in "".join(found.text["p"])
    assert not any(t.classes & {"u", "k"} for trace in found.traces for t in trace)


def test_the_command_writes_the_same_page(tmp_path, study):
    out = tmp_path / "page.html"
    ran = CliRunner().invoke(app, ["view", str(study.path), "--limit", "2", "--out", str(out)])
    assert ran.exit_code == 0, ran.output
    assert out.read_text(encoding="utf-8") == study.view(limit=2).html
    assert "2 problems, 4 traces" in ran.stdout
    wrong = CliRunner().invoke(
        app, ["view", str(study.path), "--problem", "none", "--out", str(out)]
    )
    assert wrong.exit_code == 2
    assert "none of its 4" in wrong.stderr
