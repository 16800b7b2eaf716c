import csv
import time
from dataclasses import replace

import pytest
import torch

from studies import training_speed as study
from studies.credit_assay import Config, task_of
from tokensense.models.policy import load_policy


def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


class Work:
    def outer(self):
        burn(0.02)
        self.inner()
        return "done"

    def inner(self):
        burn(0.04)


def test_time_is_laid_to_the_phase_where_it_was_spent():
    meter, work = study.Meter(), Work()
    original = Work.outer
    with (
        meter.timing(Work, "outer", "scoring"),
        meter.timing(Work, "inner", "sampling", "within scoring"),
    ):
        meter.begin()
        assert work.outer() == "done"
        burn(0.03)
        meter.tokens = 7
        meter.end_step()
        meter.end_step()
    assert Work.outer is original
    first, empty = meter.rows
    assert first["sampling"] == pytest.approx(0.04, abs=0.01)
    assert first["scoring"] == pytest.approx(0.02, abs=0.01)
    assert first["rest"] == pytest.approx(0.03, abs=0.01)
    assert first["whole"] == pytest.approx(sum(first[p] for p in study.PHASES))
    assert (first["tokens"], empty["tokens"]) == (7, 0)
    assert empty["sampling"] == 0


def test_optimizer_steps_are_timed_until_the_hooks_are_gone():
    meter = study.Meter()
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(3))])
    with meter.timing_optimizers():
        optimizer.step()
    spent = meter.spent["step"]
    assert spent > 0
    optimizer.step()
    assert meter.spent["step"] == spent


def test_every_phase_of_our_own_step_is_seen():
    task = task_of(Config(regime="C", judged=((0, 1),)))
    settings = replace(study.TINY.training(), problems=4)
    rows = study.ours(load_policy("tiny:tables"), task, settings, rule="cscr_0.8")
    assert len(rows) == 2
    for row in rows:
        assert row["tokens"] > 100
        assert row["sampling"] > row["rest"] > 0
        assert row["scoring"] > 0
    assert any(row["loss"] > 0 and row["step"] > 0 for row in rows)


def test_medians_ranges_and_the_ratio():
    rows = [
        {
            "who": who,
            "repeat": repeat,
            "tokens": 500,
            "whole": whole,
            **dict.fromkeys(study.PHASES, 1),
        }
        for who, wholes in (("ours", (1.0, 2.0, 3.0, 8.0)), ("trl", (4.0, 6.0, 6.0, 9.0)))
        for repeat, whole in zip((0, 0, 1, 1), wholes, strict=True)
    ]
    table = {line["phase"]: line for line in study.summary(rows)}
    whole = table["whole"]
    assert (whole["ours"], whole["ours_low"], whole["ours_high"]) == (2.5, 1.5, 5.5)
    assert (whole["trl"], whole["ratio"], whole["trl_steps"]) == (6.0, 2.4, 4)
    assert table["whole_per_1000_tokens"]["ours"] == 5.0
    alone = study.summary([row for row in rows if row["who"] == "ours"])
    assert "ratio" not in alone[0]


def test_without_trl_our_numbers_come_alone_and_that_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(study.importlib.util, "find_spec", lambda name: None)
    row = {**dict.fromkeys(study.PHASES, 0.1), "whole": 0.5, "tokens": 9}
    monkeypatch.setattr(study, "ours", lambda *_: [row, row])
    study.beside(study.TINY, out=tmp_path)
    assert "TRL is not installed" in capsys.readouterr().out
    with (tmp_path / "table.csv").open(newline="") as file:
        assert "trl" not in next(csv.DictReader(file))
