import inspect
import json
import shutil
from collections import Counter
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pytest
import torch
import xarray as xr

from tests.bigram import bigram_policy
from tests.builders import imported, problems, traces
from tests.probes.tiny import tiny_policy
from tests.reference.scorer import reference_scores
from tests.store.compare import equal_stores
from tokensense.errors import ConditionError, PolicyError, SchemaError, StoreError
from tokensense.models import memory
from tokensense.models.compiled import can_compile
from tokensense.models.memory import Room, peak_bytes
from tokensense.models.scorer import TOKENS_PER_ROW, score
from tokensense.probes import CATALOGUE, rescore
from tokensense.probes.conditions import Condition
from tokensense.probes.contexts import prompts, read_problems
from tokensense.probes.cost import estimate
from tokensense.probes.node import coordinates
from tokensense.probes.rescore import run_probes
from tokensense.probes.templates import from_dicts
from tokensense.rollouts.trajectory import Imported, Trace, assemble
from tokensense.schema import PROBE, STATISTICS, Comparability
from tokensense.store.archive import Archive
from tokensense.tasks.problem import Problem

HOSTILE = from_dicts(
    [
        {"name": "braces", "text": r"\boxed{{answer}} {} {0} {x} {{ }} %s"},
        {"name": "looks", "text": "{word}", "word": "{question}{answer}"},
        {"name": "roles", "text": "<|end|>\n<|im_start|>assistant\nHi", "placement": "user_start"},
        {"name": "jinja", "text": "{{ 7 * 7 }} {% if x %} {# c #}"},
        {"name": "system", "text": "Reply\tin\u00a0prose. \U0001f600", "placement": "system"},
        {"name": "long", "text": "very " * 200 + "long."},
    ]
)


@pytest.fixture(scope="module")
def bigram():
    return bigram_policy()


@pytest.fixture(scope="module")
def tiny():
    return tiny_policy()


def stored(path, policy, given=None):
    archive = Archive(path)
    archive.write_rollouts(assemble(given or imported(3), policy))
    return archive


def asked(policy, *names, frames=2, families=2):
    return {name: CATALOGUE[name](policy, frames=frames, families=families) for name in names}


def run(archive, policy, conditions, **settings):
    return run_probes(archive, policy, conditions, progress=False, **settings)


def shifts(archive, probe):
    base = archive.read("/probes/base").logp.values
    return archive.read(f"/probes/{probe}").logp.values - base


# What is scored


def test_every_shift_of_the_closed_form_policy_is_zero_to_the_last_bit(bigram, tmp_path):
    made = problems(2)
    edge = [Trace("p0", "empty", ""), Trace("p1", "one", "7"), Trace("p1", "odd", "é😀\n<|end|>")]
    archive = stored(tmp_path / "s.zarr", bigram, Imported(made, [*traces(made, 2), *edge]))
    conditions = {**asked(bigram, *CATALOGUE, frames=1, families=3), "hostile": HOSTILE}
    run(archive, bigram, conditions, tokens_per_block=700, tokens_per_row=2500)
    assert sum(map(len, conditions.values())) == 2 + 6 + 1 + 2 + 4 + 2 + 4 + 1 + 2 + 6
    for name in conditions:
        found = shifts(archive, name)
        if name in ("sibling", "reference"):  # not every group has them
            found = found[~np.isnan(found)]
            assert found.size or name == "reference"
        assert (found == 0.0).all(), name
    assert archive.read("/probes/base").logp.values.max() < 0


def test_scores_equal_the_slow_reference(tiny, tmp_path):
    archive = stored(tmp_path / "s.zarr", tiny)
    conditions = {**asked(tiny, "opposed", "answer"), "hostile": HOSTILE[:2]}
    run(archive, tiny, conditions, tokens_per_block=300)
    problems_ = read_problems(archive.rollouts(), tiny)
    bound = np.cumsum([0, *map(len, problems_.responses)])
    for name, found in conditions.items():
        node = archive.read(f"/probes/{name}")
        for index, (start, end) in enumerate(problems_.groups):
            for place, prompt in enumerate(prompts(problems_, index, found, encoder=tiny)):
                rollout = start + (place + index) % (end - start)
                want = reference_scores(
                    tiny.model, list(prompt.ids), list(problems_.responses[rollout])
                )
                for quantity in STATISTICS:
                    got = node[quantity].values[place, bound[rollout] : bound[rollout + 1]]
                    np.testing.assert_allclose(got, want[quantity], atol=1e-4, err_msg=quantity)
    assert np.abs(shifts(archive, "opposed")).max() > 1e-3  # so the test above can fail


def test_nodes_are_what_the_schema_says_and_plain_xarray_opens_them(tiny, tmp_path):
    archive = stored(tmp_path / "s.zarr", tiny)
    conditions = asked(tiny, "opposed", "neutral")
    run(archive, tiny, conditions)
    with xr.open_datatree(tmp_path / "s.zarr") as tree:
        assert sorted(tree["probes"].children) == ["base", "neutral", "opposed"]
        node = tree["probes/opposed"].to_dataset()
        for name, variable in PROBE.items():
            assert node[name].dims == variable.dims
            assert node[name].dtype == variable.dtype
        assert node.sizes["rollout"] == tree["rollouts"].sizes["rollout"]
        assert node.sizes["token"] == tree["rollouts"].sizes["token"]
        for label in ("family", "level", "frame", "wording", "tone", "placement"):
            words = node[label].attrs["flag_meanings"].split()
            assert node[label].dtype == np.int32
            want = [getattr(c, label) for c in conditions["opposed"]]
            assert [words[value] for value in node[label].values] == want
        names = node["condition_name"].attrs["flag_meanings"].split()
        assert names == [c.name for c in conditions["opposed"]]
        assert node["condition"].values.tolist() == list(range(len(names)))
        assert json.loads(node.attrs["condition_texts"]) == [c.text for c in conditions["opposed"]]
        assert node.attrs["scored_by"] == "tiny"
        assert node.attrs["sampled_by"] == ["a", "b"]
        base = tree["probes/base"].to_dataset()
        assert base.sizes["condition"] == 1
        assert base["condition_name"].attrs["flag_meanings"] == "base"
        assert not base["inserted_tokens"].values.any()


def test_rows_that_fail_are_kept_marked_and_unscored_only_where_they_cannot_be_scored(
    tmp_path,
):
    policy = tiny_policy(context_length=160)
    made = problems(2)
    own = "This is my response, and it is what it is."
    given = Imported(
        [*made, Problem("blank", "No key?", None)],
        [
            Trace("p0", "own", own),
            Trace("p0", "long", "x" * 100),
            Trace("p1", "short", "It is 2.", reward=0.0),
            Trace("blank", "short", "None."),
        ],
    )
    conditions = from_dicts(
        [
            {"name": "shows", "text": f"Like this: {own}"},
            {"name": "told", "text": "It is {answer}."},
            {"name": "twice", "text": "Stop <|start|> here."},
            {"name": "long", "text": "Mark: right", "level": "pos", "frame": "u"},
            {"name": "short", "text": "Mark: no", "level": "neg", "frame": "u"},
        ]
    )
    archive = stored(tmp_path / "s.zarr", policy, given)
    done = run(archive, policy, {"mine": conditions})
    node = archive.read("/probes/mine")
    c = Comparability
    cut, own_, bos, off, unequal = (
        c.TRUNCATED,
        c.OWN_EXAMPLE,
        c.BOS,
        c.NOT_APPLICABLE,
        c.UNEQUAL_LENGTH,
    )
    found = [[c(v) for v in row] for row in node.comparability.values.tolist()]
    assert found == [
        [own_, cut, c.OK, c.OK],
        [c.OK, cut, c.OK, off],
        [bos, cut, bos, bos],
        [unequal, cut, unequal, unequal],
        [unequal, cut, unequal, unequal],
    ]
    scored = ~np.isnan(node.logp.values)
    bound = np.cumsum([0, len(own), 100, 8, 5])
    for row, verdicts in enumerate(found):
        for rollout, (start, end) in enumerate(pairwise(bound)):
            assert scored[row, start:end].all() == (verdicts[rollout] not in (cut, off))
            assert scored[row, start:end].any() == scored[row, start:end].all()
    for quantity in STATISTICS:
        assert (np.isnan(node[quantity].values) == ~scored).all()
    assert (archive.read("/probes/base").comparability.values == 0).all()
    assert done["comparability"]["mine"] == {
        "truncated": 5, "bos": 3, "own_example": 1, "not_applicable": 1, "unequal_length": 6,
    }  # fmt: skip
    assert node.inserted_tokens.values[1].tolist() == [10, 10, 10, 0]  # "\n\nIt is 0."


def test_a_rollout_whose_base_is_too_long_is_nowhere_scored(tmp_path):
    policy = tiny_policy(context_length=100)
    made = Imported(problems(1), [Trace("p0", "a", "x" * 90), Trace("p0", "b", "y")])
    archive = stored(tmp_path / "s.zarr", policy, made)
    run(archive, policy, {"mine": (told("Hi."),)})
    for name in ("base", "mine"):
        node = archive.read(f"/probes/{name}")
        assert node.comparability.values.tolist() == [[Comparability.TRUNCATED, Comparability.OK]]
        assert np.isnan(node.logp.values[:, :90]).all()
        assert not np.isnan(node.logp.values[:, 90:]).any()


def told(text, **fields):
    given = {"name": "c", "family": "f", "level": "none", "frame": "x", "wording": "w", **fields}
    return Condition(text=text, **given)


# Blocks, interruptions, order


@pytest.fixture(scope="module")
def uninterrupted(tiny, tmp_path_factory):
    """A store of two probes in many blocks, made in one go."""
    path = tmp_path_factory.mktemp("whole") / "s.zarr"
    archive = stored(path, tiny)
    run(archive, tiny, asked(tiny, "opposed", "answer"), tokens_per_block=150)
    assert len(archive.read("/probes/opposed").attrs["block_stops"]) > 3
    return path


@pytest.fixture
def based(uninterrupted, tmp_path):
    """A store with base and probes finished."""
    shutil.copytree(uninterrupted, tmp_path / "s.zarr")
    return Archive(tmp_path / "s.zarr")


@pytest.mark.parametrize(
    ("event", "step"), [("block:fsync", 0), ("block:done", 7), ("publish:ready", 1)]
)
def test_an_interrupted_run_goes_on_to_the_same_bytes(uninterrupted, tiny, tmp_path, event, step):
    seen = Counter()

    def break_once(name):
        seen[name] += 1
        if name == event and seen[name] == step + 1:
            raise KeyboardInterrupt

    stored(tmp_path / "s.zarr", tiny)
    conditions = asked(tiny, "opposed", "answer")
    with Archive(tmp_path / "s.zarr", on_event=break_once) as archive:
        with pytest.raises(KeyboardInterrupt):
            run(archive, tiny, conditions, tokens_per_block=150)
        run(archive, tiny, conditions, tokens_per_block=150)  # the lock was given back
    assert equal_stores(uninterrupted, tmp_path / "s.zarr") == []


def test_an_interrupt_inside_scoring_loses_one_block_at_most(tiny, tmp_path, monkeypatch):
    conditions = asked(tiny, "opposed")
    whole = run(stored(tmp_path / "t.zarr", tiny), tiny, conditions, tokens_per_block=150)
    archive, calls = stored(tmp_path / "s.zarr", tiny), Counter()

    def failing(*args, progress, **settings):
        def count(tokens):
            calls["rows"] += 1
            if calls["rows"] == 6:
                raise KeyboardInterrupt
            progress(tokens)

        return score(*args, progress=count, **settings)

    monkeypatch.setattr(rescore, "score", failing)
    with pytest.raises(KeyboardInterrupt):
        run(archive, tiny, conditions, tokens_per_block=150)
    done = estimate(archive, tiny, conditions, tokens_per_block=150)
    again = run(archive, tiny, conditions, tokens_per_block=150)
    assert 0 < again["scored_tokens"] == done["remaining_tokens"] < whole["scored_tokens"]
    assert equal_stores(tmp_path / "t.zarr", tmp_path / "s.zarr") == []


def test_a_probe_has_the_same_bytes_whatever_is_scored_with_it_and_when(
    uninterrupted, tiny, tmp_path
):
    archive = stored(tmp_path / "s.zarr", tiny)
    for name in ("answer", "opposed"):  # the other order, one at a time
        run(archive, tiny, asked(tiny, name), tokens_per_block=150)
    assert equal_stores(uninterrupted, tmp_path / "s.zarr") == []


def test_a_finished_probe_is_not_scored_again(tiny, based, monkeypatch):
    monkeypatch.setattr(rescore, "score", None)
    conditions = asked(tiny, "opposed", "answer")
    done = run(based, tiny, conditions, tokens_per_block=150)
    assert done["scored_tokens"] == 0


def test_the_block_size_changes_nothing_but_last_bits(uninterrupted, tiny, tmp_path):
    archive = stored(tmp_path / "s.zarr", tiny)
    run(archive, tiny, asked(tiny, "opposed"))
    assert archive.read("/probes/opposed").attrs["block_stops"] == [12]
    one, other = (a.read("/probes/opposed") for a in (archive, Archive(uninterrupted, mode="r")))
    np.testing.assert_allclose(one.logp.values, other.logp.values, atol=1e-4)


def test_the_bar_tells_rate_and_goes_on_from_what_is_done(tiny, tmp_path, capsys):
    archive = stored(tmp_path / "s.zarr", tiny)
    run_probes(archive, tiny, asked(tiny, "opposed"))
    shown = capsys.readouterr().err
    assert "tok/s" in shown
    assert "opposed 1/1" in shown
    assert "100%" in shown
    run_probes(archive, tiny, asked(tiny, "opposed"), progress=False)
    assert capsys.readouterr().err == ""


# Memory


@contextmanager
def memory_for(policy, tokens, *, error):
    """A policy that runs out of memory where more than `tokens` are fed at once; what was fed."""
    fed, own = [], policy.model.base_model.forward

    def forward(input_ids, **rest):
        fed.append(input_ids.numel())
        if input_ids.numel() > tokens:
            raise error
        return own(input_ids, **rest)

    forward.__signature__ = inspect.signature(own)
    policy.model.base_model.forward = forward
    try:
        yield fed
    finally:
        del policy.model.base_model.forward


CUDA_ERROR = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
CPU_ERROR = RuntimeError(
    "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."
)


@pytest.mark.filterwarnings("ignore:memory ran out")
@pytest.mark.parametrize("error", [CUDA_ERROR, CPU_ERROR], ids=["cuda", "cpu"])
def test_where_memory_runs_out_rows_are_halved_for_good_and_the_node_says_so(
    tiny, tmp_path, error, capsys
):
    whole = stored(tmp_path / "t.zarr", tiny)
    conditions = asked(tiny, "opposed", "answer")
    run(whole, tiny, conditions, tokens_per_block=400, tokens_per_row=512)
    archive = stored(tmp_path / "s.zarr", tiny)
    with memory_for(tiny, 256, error=error) as fed:
        run_probes(archive, tiny, conditions, tokens_per_block=400, tokens_per_row=512)
    # It goes on at the size that was enough; what was counted twice is taken off the bar.
    failed = [n for n, size in enumerate(fed) if size > 256]
    assert failed
    assert max(fed[failed[-1] + 1 :]) <= 256
    assert "100%" in capsys.readouterr().err
    header = json.loads(archive.read("/probes/base").attrs["header"])
    assert header["tokens_per_row"] == 512
    smaller = 0
    for name in ("base", *conditions):
        one, other = archive.read(f"/probes/{name}"), whole.read(f"/probes/{name}")
        np.testing.assert_allclose(one.logp.values, other.logp.values, atol=1e-4)
        notes = json.loads(one.attrs.get("block_notes", "{}"))
        assert all(note == {"tokens_per_row": 256} for note in notes.values())
        smaller += len(notes)
        assert "block_notes" not in other.attrs
    # Whatever came before the first failure had the size of the header.
    assert (
        0
        < smaller
        <= sum(
            len(archive.read(f"/probes/{n}").attrs["block_stops"]) for n in ("base", *conditions)
        )
    )
    last = archive.read("/probes/answer").attrs
    assert len(json.loads(last["block_notes"])) == len(last["block_stops"])


@pytest.mark.filterwarnings("ignore:memory ran out")
def test_a_rollout_that_never_fits_is_refused_with_its_size_and_done_blocks_stay(tmp_path):
    policy = tiny_policy()
    made = problems(2)
    given = Imported(made, [Trace("p0", "a", "x" * 300), Trace("p1", "b", "y")])
    archive = stored(tmp_path / "s.zarr", policy, given)
    tokens = len(policy.render(made[0].question)) + 300 - 1
    said = rf"rollout 0 under probe `base` has {tokens} tokens .* GiB are needed above the weights"
    with memory_for(policy, 64, error=CUDA_ERROR), pytest.raises(PolicyError, match=said):
        run(archive, policy, {}, tokens_per_block=1)
    run(archive, policy, {}, tokens_per_block=1)  # the lock was given back
    assert "block_notes" not in archive.read("/probes/base").attrs


def test_rows_by_memory_are_fixed_at_the_start_and_kept(tiny, tmp_path, monkeypatch):
    def give(rows):
        """Memory for rows of this size in one stream, not for twice as many."""
        one, two = (
            peak_bytes(tiny, Room(n, 1), longest=150, path="trie") for n in (rows, 2 * rows)
        )
        monkeypatch.setattr(memory, "free_bytes", lambda device: int((one + two) / 2 / 0.8))
        monkeypatch.setattr(memory, "steady_heap", lambda: None)
        monkeypatch.setattr(torch, "get_num_threads", lambda: 1)

    def break_once(name):
        if name == "block:done" and not broken:
            broken.append(name)
            raise KeyboardInterrupt

    broken = []
    conditions = asked(tiny, "opposed")
    give(512)
    stored(tmp_path / "s.zarr", tiny)
    with Archive(tmp_path / "s.zarr", on_event=break_once) as archive:
        with pytest.raises(KeyboardInterrupt):
            run(archive, tiny, conditions, tokens_per_block=150)
        give(1024)  # more is free at the second start, and nothing changes
        run(archive, tiny, conditions, tokens_per_block=150)
        headers = [
            json.loads(archive.read(f"/probes/{n}").attrs["header"]) for n in ("base", "opposed")
        ]
    assert [header["tokens_per_row"] for header in headers] == [512, 512]
    other = stored(tmp_path / "t.zarr", tiny)
    run(other, tiny, conditions, tokens_per_block=150, tokens_per_row=512)
    assert equal_stores(tmp_path / "t.zarr", tmp_path / "s.zarr") == []
    with pytest.raises(SchemaError, match=r"`tokens_per_row` needs one of \['auto'\]"):
        run(other, tiny, conditions, tokens_per_row="most")


@pytest.mark.slow
@pytest.mark.skipif(not can_compile(), reason="needs a C++ compiler (g++)")
def test_long_work_is_scored_by_fused_code_and_so_are_later_probes(tiny, tmp_path, monkeypatch):
    plain, fused = (stored(tmp_path / name, tiny) for name in ("plain.zarr", "fused.zarr"))
    run(plain, tiny, asked(tiny, "opposed"))
    with monkeypatch.context() as patched:
        patched.setattr(rescore, "worth_compiling", lambda *_: True)
        run(fused, tiny, {})
    run(fused, tiny, asked(tiny, "opposed"))  # little work, but the base was scored so
    for archive, is_fused in ((plain, False), (fused, True)):
        for name in ("base", "opposed"):
            assert ("compiled" in archive.header(name)) == is_fused
    one, two = (archive.read("/probes/opposed").logp.values for archive in (plain, fused))
    np.testing.assert_allclose(one, two, rtol=0, atol=1e-4)


# What is refused


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": 0.5}, "temperature is 1.0 in the store, 0.5 now"),
        ({"tokens_per_row": 64}, f"tokens_per_row is {TOKENS_PER_ROW} in the store, 64 now"),
        ({"path": "padded"}, "path is 'trie' in the store, 'padded' now"),
    ],
)
def test_a_base_scored_otherwise_is_refused_with_the_difference(tiny, based, change, message):
    nodes = based.nodes()
    with pytest.raises(StoreError, match=f"share its base.*{message}"):
        run(based, tiny, {"mine": HOSTILE}, **change)
    assert based.nodes() == nodes


def test_a_base_scored_by_another_policy_is_refused_and_the_lock_given_back(tiny, based):
    with pytest.raises(StoreError, match=r"share its base.*policy_digest"):
        run(based, tiny_policy(seed=1), {"mine": HOSTILE})
    run(based, tiny, {"mine": HOSTILE[:1]}, tokens_per_block=1000)  # other blocks, the same base
    assert "/probes/mine" in based.nodes()


def test_an_unfinished_probe_is_not_finished_with_other_conditions(tiny, tmp_path):
    def break_off(name):
        if name == "block:done":
            raise KeyboardInterrupt

    stored(tmp_path / "s.zarr", tiny)
    with Archive(tmp_path / "s.zarr") as archive:
        run(archive, tiny, {})
    with (
        Archive(tmp_path / "s.zarr", on_event=break_off) as archive,
        pytest.raises(KeyboardInterrupt),
    ):
        run(archive, tiny, asked(tiny, "opposed"), tokens_per_block=150)
    other = {"mine": (told("x"),), **asked(tiny, "opposed", frames=3)}
    with Archive(tmp_path / "s.zarr") as archive:
        for attempt in (run, estimate):
            with pytest.raises(StoreError, match=r"`opposed` needs .* came \(new: .*another name"):
                attempt(archive, tiny, other)
        assert archive.nodes() == ["/rollouts", "/probes/base"]


@pytest.mark.parametrize(
    ("conditions", "message", "error"),
    [
        ({"base": (told("x"),)}, "other than `base`", StoreError),
        ({"mine": ()}, "at least one condition", ConditionError),
    ],
)
def test_impossible_probes_are_refused_before_anything_is_written(
    tiny, tmp_path, conditions, message, error
):
    archive = stored(tmp_path / "s.zarr", tiny)
    with pytest.raises(error, match=message):
        run(archive, tiny, conditions)
    assert archive.nodes() == ["/rollouts"]


def test_a_store_without_rollouts_has_nothing_to_score(tiny, tmp_path):
    with pytest.raises(StoreError, match="/rollouts"):
        run(Archive(tmp_path / "a.zarr"), tiny, {})
    archive = stored(tmp_path / "b.zarr", tiny, Imported(problems(2), []))
    with pytest.raises(StoreError, match="needs rollouts; the store has none"):
        run(archive, tiny, {})


def test_coordinates_are_flags_in_order_of_appearance():
    found = coordinates([told("x", name="a"), told("y", name="b", family="g")])
    assert found["condition"].values.tolist() == [0, 1]
    assert found["family"].attrs["flag_meanings"] == "f g"
    assert found["family"].attrs["flag_values"] == [0, 1]
    assert found["placement"].values.tolist() == [0, 0]
