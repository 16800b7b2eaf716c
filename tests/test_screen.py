"""`info` is one screen, whatever the store holds, and names what a reader has to know."""

import pytest

from tokensense.screen import WIDTH, arrived, cost, drawn, findings, screen

FOUND = {
    "path": "runs/a.zarr",
    "megabytes": 12.5,
    "format_version": 1,
    "rollouts": 1200,
    "problems": 150,
    "question_texts": 140,
    "tokens": 250_000,
    "longest": 1024,
    "rewards": {"right": 700, "wrong": 480, "undecided": 20},
    "groups_with_contrast": 100,
    "groups_without_contrast": 50,
    "finish": {"stop": 1100, "length": 100},
    "ids_origin": {"exact": 1000, "retokenized": 200},
    "text_mismatch": 3,
    "labels": {"unlabeled": 1200},
    "right_by_luck": 0,
    "set_aside": {"empty": 2},
    "refused_lines": 1,
    "undecided": {"timeout": 20},
    "sampled_by": ["m1", "m2"],
    "scored_by": "m1",
    "off_policy": True,
    "probes": {
        "base": {"state": "finished", "conditions": 1, "comparability": {"ok": 1200}},
        "opposed": {
            "state": "finished",
            "conditions": 4,
            "comparability": {"ok": 4790, "truncated": 10},
        },
        "neutral": {"state": "unfinished", "blocks": 9, "done": 4, "missing": [4, 5, 6, 7, 8]},
        "answer": {"state": "unfinished", "blocks": 9, "done": 9, "rollouts_done": 900},
    },
    "analyses": [],
    "credit": ["cscr"],
    "made_before_an_append": ["/probes/answer"],
    "megabytes_of": {"/rollouts": 1.5, "/probes/opposed": 9.0},
    "made_with": {
        "/rollouts": {
            "command": "tokensense generate a.zarr " + "x" * 200,
            "commit": "0123456789abcdef",
            "uncommitted_changes": True,
            "python": "3.11.7",
            "packages": {"tokensense": "0.1.0", "torch": "2.13.0"},
        },
        "/probes/base": {
            "command": "b", "commit": None, "uncommitted_changes": None, "python": "3.11.7",
            "packages": {"tokensense": "0.1.0"},
        },
    },
    "holder": {"pid": 7, "host": "node", "command": "tokensense probe", "start": "2026"},
}  # fmt: skip


@pytest.mark.parametrize("probes", [4, 40])
def test_one_screen_says_what_a_reader_has_to_know(probes):
    more = {f"p{i}": FOUND["probes"]["opposed"] for i in range(probes - 4)}
    lines = screen({**FOUND, "probes": {**FOUND["probes"], **more}})
    assert len(lines) <= 36
    assert all(len(line) <= WIDTH for line in lines)
    text = "\n".join(lines)
    for part in (
        "1,200 of 150 problems (140 question texts), 250,000 tokens",
        "700 right, 480 wrong, 20 undecided",
        "100 with contrast, 50 without",
        "1,100 stop, 100 length",
        "1,000 exact, 200 retokenized; 3 do not decode to their text",
        "m1  (OFF-POLICY)",
        "neutral: UNFINISHED, 5 of 9 blocks are missing",
        "answer: UNFINISHED, has the first 900 rollouts",
        "/probes/answer (rollouts were appended)",
        "/probes/opposed 9.0 MB, /rollouts 1.5 MB",
        "tokensense 0.1.0, torch 2.13.0, python 3.11.7; commit 0123456789ab, with uncommitted",
        "1 other versions or commits",
        "process 7 on node",
        "2 empty, 1 lines refused",
    ):
        assert part in text
    # What is unfinished comes before what is counted only.
    if probes == 40:
        assert "and 32 more; --json has all" in text
    else:
        assert "opposed: 4 conditions, not comparable: 10 truncated" in text


def test_an_empty_store_says_what_to_do():
    found = {"path": "a", "megabytes": 0.0, "format_version": 1}
    assert screen(found)[1] == "rollouts     none yet; import or generate makes some"


def test_an_import_tells_every_line_that_was_refused():
    lines = arrived({**FOUND, "refused": ["a.jsonl:4: JSON is needed", "a.jsonl:9: no text"]})
    assert lines[:-2] == screen(FOUND)
    assert lines[-2:] == [
        "refused      a.jsonl:4: JSON is needed", "refused      a.jsonl:9: no text"
    ]  # fmt: skip


def test_figures_are_told_by_file_not_by_digest():
    files = {f"triples{end}": {"sha256": "ab"} for end in (".pdf", ".png", "_statistics.csv")}
    one = {"figures": {"triples": {"files": files, "caption": "long"}}}
    beside = "captions.txt, numbers.tex and manifest.json: in "
    assert drawn(one, "out") == [
        "out/triples: pdf, png, _statistics.csv",
        f"{beside}the folder",
    ]
    every = {"sets": {"shifts": one, "credit": one}, "not_drawn": {"centers": "run it"}}
    assert drawn(every, "out")[1:] == [
        "out/credit/triples: pdf, png, _statistics.csv",
        f"{beside}shifts, credit",
        "not drawn: run it",
    ]


def test_findings_say_what_to_do():
    assert findings([("/rollouts", "is damaged", "copy")]) == [
        "/rollouts: is damaged. To do: restore it from a copy"
    ]


def test_a_dry_run_is_told_with_units():
    found = {
        "rollouts": 3, "response_tokens": 4000, "scored_tokens": 20_000, "remaining_tokens": 9000,
        "fed_tokens": 21_000, "whole_tokens": 42_000, "streams": 2, "tokens_per_row": 1024,
        "path": "trie", "peak_gib": 0.054, "weights_gib": 0.5, "free_gib": 21.5,
        "remaining_seconds": 3725.4, "tokens_per_second": 351.6, "sample_tokens": 2500,
        "sample_seconds": 7.25, "probes": {"base": {"blocks": 1}},
    }  # fmt: skip
    text = "\n".join(cost(found))
    for part in (
        "3 with 4,000 response tokens",
        "20,000 tokens, 9,000 of them left",
        "21,000 tokens; 42,000 if nothing",
        "2 x 1,024 tokens, path trie",
        "0.05 GiB above the weights (0.50 GiB); 21.50 GiB are free",
        "1 h 2 min 5 s; 352 tokens scored a second, as in a sample of 2,500 tokens fed in 7.2 s",
    ):
        assert part in text
    done = cost({**found, "remaining_seconds": 0.0, "tokens_per_second": None})
    assert "0 h 0 min 0 s" in "\n".join(done)
