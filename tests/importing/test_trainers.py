"""What trainers write: TRL, verl, prime-rl, open-instruct; each trap of their formats.

Files are made here after the sources that `layouts` names; for TRL's own see test_trl_run.
"""

import json
import math
from pathlib import Path

import pytest

from tokensense.errors import InputError, MissingExtraError
from tokensense.importing import FORMATS, layouts, read
from tokensense.importing.collecting import CONTRADICTORY, REPEATED
from tokensense.importing.open_instruct import TOOLS
from tokensense.importing.prime_rl import SEVERAL_TURNS
from tokensense.importing.trl import LOGGED_AGAIN
from tokensense.importing.verl import OUTPUTS
from tokensense.schema import Finish
from tokensense.tasks import CATALOGUE


def lines(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return path


def groups(imported):
    """Prompt -> texts or ids of its rollouts, a list a group."""
    return [
        (
            imported.prompts[problem.name],
            [t.ids or t.text for t in imported.traces if t.problem == problem.name],
        )
        for problem in imported.problems
    ]


# --- TRL -----------------------------------------------------------------------------------------


def completions(folder, step, rows, **columns):
    """A parquet of TRL's columns; `rows` are (prompt, completion, reward)."""
    arrow = pytest.importorskip("pyarrow", reason="needs the extra `io`")
    from pyarrow import parquet

    table = {
        "step": [step] * len(rows),
        "prompt": [row[0] for row in rows],
        "completion": [row[1] for row in rows],
        "accuracy_reward": [row[2] for row in rows],
        **columns,
        "advantage": [0.0] * len(rows),
    }
    folder.mkdir(parents=True, exist_ok=True)
    parquet.write_table(arrow.table(table), folder / f"completions_{step:05d}.parquet")
    return folder


def test_trl_groups_are_prompts_within_a_step(tmp_path):
    for step in (9, 10):
        rows = [("p", f"a{step}", 1.0), ("p", f"b{step}", 0.0), ("q", "c", 1.0)]
        completions(tmp_path / "completions", step, rows)
    imported = read(tmp_path, format="trl")
    assert groups(imported) == [
        ("p", ["a9", "b9"]),
        ("q", ["c"]),
        ("p", ["a10", "b10"]),
        ("q", ["c"]),
    ]
    assert [trace.reward for trace in imported.traces] == [1, 0, 1, 1, 0, 1]
    assert imported.traces[0].name == "completions_00009:1"
    assert {trace.finish for trace in imported.traces} == {Finish.UNKNOWN}
    assert imported.set_aside == {}
    assert groups(read(tmp_path / "completions", format="trl")) == groups(imported)


def test_trl_s_messages_are_read_where_there_is_one_of_each_side(tmp_path):
    """Conversational data sets: pitfall of a template that is put around twice."""
    system, user = {"role": "system", "content": "s"}, {"role": "user", "content": "p"}
    said = {"role": "assistant", "content": "a"}
    called = [said, {"role": "tool", "content": "4"}, said]
    rows = [([user], [said], 1.0), ([system, user], [said], 0.0), ([user], called, 0.0)]
    completions(tmp_path / "completions", 1, rows)
    imported = read(tmp_path, format="trl")
    assert [problem.question for problem in imported.problems] == ["p"]
    assert [trace.text for trace in imported.traces] == ["a"]
    assert imported.prompts == {}  # the question itself
    assert sum(imported.set_aside.values()) == 2
    assert "more than one message" in next(iter(imported.set_aside))


def test_trl_s_equal_samples_are_samples(tmp_path):
    """Pitfall 44 the other way: rows without an id may be equal without being one row."""
    completions(tmp_path, 1, [("p", "a", 1.0)] * 3 + [("p", "b", 0.0)])
    imported = read(tmp_path, format="trl")
    assert groups(imported) == [("p", ["a", "a", "a", "b"])]
    assert imported.set_aside == {}


def test_trl_s_batch_that_is_logged_again_at_a_later_step_counts_once(tmp_path):
    """Pitfall 44: `num_iterations` 2 logs every generation batch twice."""
    first, second = [("p", "a", 1.0), ("p", "b", 0.0)], [("p", "c", 1.0), ("p", "b", 0.0)]
    for step, rows in enumerate([first, first, second, second], start=1):
        completions(tmp_path, step, rows)
    imported = read(tmp_path, format="trl")
    assert groups(imported) == [("p", ["a", "b"]), ("p", ["c", "b"])]
    assert imported.set_aside == {LOGGED_AGAIN: 4}


def test_trl_s_missing_rewards_stay_missing(tmp_path):
    """Pitfall 35: None and NaN are not 0."""
    completions(tmp_path, 1, [("p", "a", None), ("p", "b", math.nan), ("p", "c", 0.0)])
    rewards = [trace.reward for trace in read(tmp_path, format="trl").traces]
    assert [math.isnan(reward) for reward in rewards] == [True, True, False]


def test_trl_s_reward_is_chosen_where_several_columns_may_be_it(tmp_path):
    rows = [("p", "a", 1.0), ("p", "b", 0.0)]
    completions(tmp_path, 1, rows, format_reward=[0.5, 0.25], gold=["7", "7"])
    with pytest.raises(InputError, match=r"\['accuracy_reward', 'format_reward'\].*--field reward"):
        read(tmp_path, format="trl")
    fields = {"reward": "format_reward", "answer": "gold"}
    imported = read(tmp_path, format="trl", fields=fields)
    assert [trace.reward for trace in imported.traces] == [0.5, 0.25]
    assert imported.problems[0].answer == "7"


def test_trl_without_a_reward_column_has_no_rewards(tmp_path):
    completions(tmp_path, 1, [("p", "a", 1.0)])
    imported = read(tmp_path, format="trl", fields={"answer": "accuracy_reward"})
    assert math.isnan(imported.traces[0].reward)


def test_trl_s_half_written_file_is_refused_and_the_others_come_in(tmp_path):
    completions(tmp_path, 1, [("p", "a", 1.0)])
    whole = (completions(tmp_path, 2, [("p", "b", 1.0)]) / "completions_00002.parquet").read_bytes()
    (tmp_path / "completions_00002.parquet").write_bytes(whole[: len(whole) // 2])
    imported = read(tmp_path, format="trl")
    assert groups(imported) == [("p", ["a"])]
    assert len(imported.refused) == 1
    assert "completions_00002.parquet: a Parquet file is needed" in imported.refused[0]


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    from tokensense import checks

    (tmp_path / "completions_00001.parquet").write_bytes(b"")

    def missing(module):
        raise ImportError(module)

    monkeypatch.setattr(checks, "import_module", missing)
    with pytest.raises(MissingExtraError, match=r"`pyarrow.parquet` is needed.*tokensense\[io\]"):
        read(tmp_path, format="trl")


# --- verl ----------------------------------------------------------------------------------------


def generation(prompt="p", output="a", score=1.0, step=1, gts="7", **other):
    return {"input": prompt, "output": output, "gts": gts, "score": score, "step": step} | other


def test_verl_s_groups_are_uids_within_a_step(tmp_path):
    """One question twice in a batch (a data set with copies, pitfall 44) is two groups by uid."""
    rows = [generation(output=f"{g}{s}", uid=f"{g}-id_{s}_0") for g in "gh" for s in (0, 1)]
    lines(tmp_path / "10.jsonl", *[row | {"step": 10} for row in rows])
    lines(tmp_path / "9.jsonl", *[generation(output="x", step=9), generation(output="y", step=9)])
    imported = read(tmp_path, format="verl")
    assert groups(imported) == [
        ("p", ["x", "y"]),
        ("p", ["g0", "g1"]),
        ("p", ["h0", "h1"]),
    ]
    assert [trace.name for trace in imported.traces][1:3] == ["9:2", "g-id_0_0"]
    assert {problem.answer for problem in imported.problems} == {"7"}


def test_verl_s_repeats_are_known_by_their_id_alone(tmp_path):
    equal, named = generation(), generation(output="b", request_id="r1")
    path = lines(tmp_path / "1.jsonl", equal, equal, named, named)
    imported = read(path, format="verl")
    assert groups(imported) == [("p", ["a", "a", "b"])]
    assert imported.set_aside == {REPEATED: 1}


def test_verl_s_outputs_of_one_session_are_set_aside(tmp_path):
    rows = [generation(output=o, uid=f"g_0_{o}") for o in "012"] + [generation(uid="g_1_0")]
    imported = read(lines(tmp_path / "1.jsonl", *rows), format="verl")
    assert [trace.name for trace in imported.traces] == ["g_1_0"]
    assert imported.set_aside == {OUTPUTS: 3}


@pytest.mark.parametrize(
    ("score", "reward"), [("1.0", 1.0), (True, 1.0), (-1, -1.0), ("nan", None), (None, None)]
)
def test_verl_s_scores_may_be_text_and_may_be_missing(tmp_path, score, reward):
    """Pitfall 35, and a writer whose `default=str` prints numbers as text."""
    (trace,) = read(lines(tmp_path / "1.jsonl", generation(score=score)), format="verl").traces
    assert math.isnan(trace.reward) if reward is None else trace.reward == reward


def test_verl_s_literal_nan_is_not_known(tmp_path):
    row = '{"input": "p", "output": "a", "gts": null, "score": NaN, "acc": 1, "step": 1}'
    path = lines(tmp_path / "1.jsonl", row, row.replace("NaN", "Infinity"))
    imported = read(path, format="verl")
    assert math.isnan(imported.traces[0].reward)
    assert imported.problems[0].answer is None
    assert "Infinity is not JSON" in imported.refused[0]
    assert read(path, format="verl", fields={"reward": "acc"}).traces[0].reward == 1


def test_verl_s_cut_last_line_is_refused_by_name(tmp_path):
    """The v1 trainer writes in the background: a killed run leaves half a line."""
    path = lines(tmp_path / "1.jsonl", generation(), generation(output="b"))
    path.write_text(path.read_text()[:-20])
    imported = read(tmp_path, format="verl")
    assert groups(imported) == [("p", ["a"])]
    assert imported.refused[0].startswith(f"{path}:2: JSON is needed")


def test_verl_s_empty_response_is_a_rollout(tmp_path):
    """Pitfall 33: zero length is legal, and its reward is its own."""
    (trace,) = read(lines(tmp_path / "1.jsonl", generation(output="")), format="verl").traces
    assert (trace.text, trace.reward) == ("", 1.0)


def test_two_answers_to_one_question_are_set_aside_over_all_steps(tmp_path):
    lines(tmp_path / "1.jsonl", generation(), generation("q"))
    lines(tmp_path / "2.jsonl", generation(step=2, gts="8"))
    imported = read(tmp_path, format="verl")
    assert groups(imported) == [("q", ["a"])]
    assert imported.set_aside == {CONTRADICTORY: 2}


# --- prime-rl ------------------------------------------------------------------------------------

LOGPS = [0.0, 0.0, -0.5, None]


def export(prompt=(256, 5), response=(6, 151643), reward=1.0, **other):
    """One sequence as `TokenExporter.export` writes it."""
    count, start = len(prompt) + len(response), len(prompt)
    return {
        "schema_version": 1,
        "step": 4,
        "export_step": 3,
        "rank": 0,
        "micro_step": 0,
        "micro_sequence_idx": 0,
        "export_sequence_idx": 0,
        "run_id": None,
        "env_name": "math",
        "token_ids": [*prompt, *response],
        "position_ids": list(range(count)),
        "loss_mask": [place >= start for place in range(count)],
        "advantages": [0.5] * count,
        "rewards": [reward] * count,
        "inference_logprobs": [0.0] * start + [-0.5, None][: len(response)],
        "trainer_logprobs": [None] + [-0.6] * (count - 1),
    } | other


def step_of(run, step, *rows, stable=True, rank=0):
    folder = run / "token_exports" / f"step_{step}"
    lines(folder / f"rank_{rank}.jsonl", *rows)
    if stable:
        (folder / "STABLE").touch()
    return folder


def test_prime_rl_s_ids_are_exact_and_split_where_the_mask_begins(tmp_path):
    """Pitfalls 8 and 14: null is NaN, never 0; ids are not narrowed."""
    second = export(response=(7, 8), reward=None, export_sequence_idx=1)
    step_of(tmp_path, 3, export(), second)
    imported = read(tmp_path, format="prime_rl")
    assert groups(imported) == [((256, 5), [(6, 151643), (7, 8)])]
    first, second = imported.traces
    assert first.logps is not None
    assert first.logps[0] == -0.5
    assert math.isnan(first.logps[1])
    assert first.reward == 1
    assert math.isnan(second.reward)
    assert first.name == "step_3/rank_0:1"
    assert first.finish == Finish.UNKNOWN


def test_prime_rl_s_steps_without_the_marker_are_not_read(tmp_path):
    step_of(tmp_path, 3, export())
    late = step_of(tmp_path, 10, export(export_step=10), stable=False)
    imported = read(tmp_path, format="prime_rl")
    assert len(imported.traces) == 1
    assert imported.refused == [
        f"{late}: the marker `STABLE` is needed; it is not there, so that the step may be half "
        "written"
    ]
    for path in (late, late / "rank_0.jsonl"):
        with pytest.raises(InputError, match="a step with the marker `STABLE` is needed"):
            read(path, format="prime_rl")


def test_prime_rl_s_groups_are_prompts_within_a_step_over_all_ranks(tmp_path):
    step_of(tmp_path, 3, export())
    step_of(tmp_path, 3, export(rank=1, response=(9,)), rank=1)
    step_of(tmp_path, 4, export(export_step=4))
    imported = read(tmp_path, format="prime_rl")
    assert groups(imported) == [
        ((256, 5), [(6, 151643), (9,)]),
        ((256, 5), [(6, 151643)]),
    ]


def test_prime_rl_s_several_turns_are_no_response(tmp_path):
    holes = export(response=(6, 7, 8), loss_mask=[False, False, True, False, True])
    tail = export(response=(6, 7, 8), loss_mask=[False, False, True, True, False])
    for row in (holes, tail):
        row["inference_logprobs"] = [0.0] * 5
    step_of(tmp_path, 3, holes, tail, export())
    imported = read(tmp_path, format="prime_rl")
    assert len(imported.traces) == 1
    assert imported.set_aside == {SEVERAL_TURNS: 2}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 2}, "`schema_version` must be an integer from 1 to 1; 2 came"),
        ({"inference_logprobs": [0.0, 0.0, -1.0]}, "one value a token, 4; 3 values came"),
        ({"inference_logprobs": [0.0, 0.0, 1.0, 0.0]}, "at most 0, or null; 1.0 came at token 2"),
        ({"loss_mask": [False] * 4}, "`loss_mask` must hold true and false, one true"),
        ({"loss_mask": [True] * 4}, "a prompt is needed"),
        ({"rewards": [1.0, 1.0, 1.0, 0.0]}, "`rewards` must be one value, the rollout's"),
        ({"token_ids": [256, 5, 6, 2**31]}, "integers from 0 to 2147483647"),
        ({"token_ids": None}, "`token_ids` must be a list of token ids; null came"),
    ],
)
def test_prime_rl_s_broken_lines_are_named(tmp_path, change, message):
    """Pitfall 4: lengths that differ are refused, never zipped."""
    folder = step_of(tmp_path, 3, export() | change, export())
    imported = read(tmp_path, format="prime_rl")
    assert len(imported.traces) == 1
    assert imported.refused[0].startswith(f"{folder}/rank_0.jsonl:1: ")
    assert message in imported.refused[0]


def test_prime_rl_s_older_exports_have_no_rewards(tmp_path):
    row = export()
    del row["rewards"]
    step_of(tmp_path, 3, row)
    assert math.isnan(read(tmp_path, format="prime_rl").traces[0].reward)


# --- open-instruct -------------------------------------------------------------------------------


def record(response=(6, 7), **other):
    return {
        "step": 1,
        "sample_idx": 0,
        "prompt_idx": 0,
        "prompt_tokens": [256, 5],
        "response_tokens": list(response),
        "reward": 10.0,
        "advantage": 0.5,
        "finish_reason": "stop",
        "dataset": "gsm8k",
        "ground_truth": "7",
        "request_info": {"tool_calleds": False, "num_calls": 0},
        "logprobs": [-0.1] * len(response),
    } | other


def test_open_instruct_s_groups_ids_and_finish_reasons(tmp_path):
    rows = [
        record(),
        record((8,), finish_reason="length", sample_idx=1),
        record((9,), prompt_idx=1, sample_idx=2),
        record((6, 7), step=2),
    ]
    lines(tmp_path / "r_rollouts_000000.jsonl", *rows[:3])
    lines(tmp_path / "r_rollouts_000001.jsonl", *rows[3:])
    lines(tmp_path / "r_metadata.jsonl", {"run_name": "r", "model_name": "olmo"})
    imported = read(tmp_path, format="open_instruct")
    assert groups(imported) == [
        ((256, 5), [(6, 7), (8,)]),
        ((256, 5), [(9,)]),
        ((256, 5), [(6, 7)]),
    ]
    assert [trace.finish for trace in imported.traces][:2] == [Finish.STOP, Finish.LENGTH]
    assert {trace.generator for trace in imported.traces} == {"olmo"}
    assert imported.traces[0].logps == (-0.1, -0.1)
    assert imported.traces[0].reward == 10
    assert {problem.answer for problem in imported.problems} == {"7"}


def test_open_instruct_s_nan_repeats_tools_and_tokenized_answers(tmp_path):
    """Pitfalls 35 and 44: NaN stays NaN; a restarted run's equal rows are one."""
    nan = record((8,), reward=math.nan, logprobs=[math.nan], sample_idx=1, ground_truth=[3, 4])
    tool = record((9,), request_info={"tool_calleds": True})
    path = lines(tmp_path / "r_rollouts_000000.jsonl", record(), record(), nan, tool)
    imported = read(path, format="open_instruct")
    assert groups(imported) == [((256, 5), [(6, 7), (8,)])]
    second = imported.traces[1]
    assert math.isnan(second.reward)
    assert second.logps is not None
    assert math.isnan(second.logps[0])
    assert imported.set_aside == {REPEATED: 1, TOOLS: 1}
    assert second.generator == ""


def test_open_instruct_s_missing_end_token_is_refused(tmp_path):
    """Pitfall 4: one log-prob more or fewer than ids is an end token in one alone."""
    path = lines(tmp_path / "r_rollouts_000000.jsonl", record(logprobs=[-0.1]), record((8,)))
    imported = read(path, format="open_instruct")
    assert len(imported.traces) == 1
    assert "`logprobs` must hold one value a token, 2; 1 values came" in imported.refused[0]


# --- all -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["trl", "verl", "prime_rl", "open_instruct"])
def test_a_folder_without_such_files_is_refused(tmp_path, format):
    with pytest.raises(InputError, match=r"are needed; .* has none"):
        read(tmp_path, format=format)
    with pytest.raises(InputError, match="are needed"):
        read(tmp_path / "missing", format=format)


@pytest.mark.parametrize("format", ["trl", "verl", "prime_rl", "open_instruct"])
def test_trainers_fields_are_fixed_but_for_some(tmp_path, format):
    with pytest.raises(InputError, match=rf"`{format}` needs a field map of .*\['text'\] came"):
        read(tmp_path, format=format, fields={"text": "output"})


def test_every_format_says_what_it_follows_and_what_it_cannot_tell():
    assert set(layouts.LAYOUTS) == set(FORMATS) | set(CATALOGUE)
    traces = {name for name, layout in layouts.LAYOUTS.items() if layout.holds == layouts.TRACES}
    assert traces == set(FORMATS)
    for name, layout in layouts.LAYOUTS.items():
        assert all(layout), name
        untested = layouts.UNTESTED in layout.tested
        assert untested == (name in {"verl", "prime_rl", "open_instruct"}), name
    page = "\n".join(layouts.described())
    assert all(f"\n{name}  (" in f"\n{page}" for name in layouts.LAYOUTS)


def test_what_a_format_says_it_follows_is_what_its_module_says():
    for name in ("trl", "verl", "prime_rl", "open_instruct"):
        module = Path(layouts.__file__).with_name(f"{name}.py").read_text()
        (commit,) = (
            part
            for part in layouts.LAYOUTS[name].follows.replace("/", " ").split()
            if len(part) == 40
        )
        assert commit in module
