import csv
import math
from dataclasses import replace

import numpy as np
import pytest

from studies import credit_assay as study
from studies.learning_rules import FACTS, Batch
from tokensense.errors import SchemaError
from tokensense.models.plan import Branch
from tokensense.tasks import tables
from tokensense.tasks.tables_labels import label

SMALL = replace(study.TINY, steps=2, problems=2, judged=((0, 8), (1, 8), (2, 8)), primary=1)
CHAIN = tables.Chain(3, (1,), True)


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def responded(*texts):
    branches = [Branch(tables.prompt(CHAIN), tables.encode(text)) for text in texts]
    labels = [label(CHAIN, branch.response, facts=FACTS) for branch in branches]
    return Batch([CHAIN] * len(texts), branches, labels, np.arange(len(texts)))


def test_what_is_said_of_responses():
    right = int(FACTS.result[1, 3])
    other = (right + 1) % 10
    found = study.described(
        responded(
            f"I_0 o1 3 = {right} well so ans {right} <eos>",
            f"I_0 o1 3 = {other} well well ans {other} <eos>",  # a computed digit
            f"I_0 o2 3 = {right} ans {right} <eos>",  # another table: structural, and lucky
            f"I_0 o1 3 = {right} ans {right}",  # cut off
        )
    )
    assert found.accuracy == 0.5
    assert (found.lucky, found.structural, found.computed, found.capped) == (0.25, 0.25, 0.25, 0.25)
    assert found.length == (10 + 10 + 8 + 7) / 4
    assert found.fillers == 1.0
    assert found.filler_entropy == pytest.approx(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)))
    assert found.problems == 4


def test_no_filler_has_no_entropy():
    found = study.described(responded("ans 1 <eos>"))
    assert (found.fillers, found.filler_entropy, found.structural) == (0.0, 0.0, 1.0)


def test_search_and_confirmation_share_no_seed():
    config = study.Config()
    assert not set(config.search) & set(config.confirm)
    assert len(config.confirm) >= 10
    assert [study.phase(config, seed) for seed in (0, 100, 50)] == ["search", "confirm", "other"]
    assert study.asked_seeds("confirm", config) == list(config.confirm)
    assert study.asked_seeds("4,7", config) == [4, 7]


def test_settings_are_those_of_the_notes():
    settings = study.Config().training(5)
    assert (settings.problems, settings.group, settings.steps, settings.seed) == (8, 4, 40, 5)
    assert (settings.beta_1, settings.beta_2, settings.max_norm) == (0.9, 0.99, math.inf)
    assert (settings.objective.kl, settings.objective.normalizer) == ("none", "token")
    assert settings.epochs == settings.updates == 1  # where nothing can be clipped


def test_an_unknown_rule_is_refused():
    with pytest.raises(SchemaError, match=r"\['oracle'\] came"):
        study.asked_rules("uniform,oracle")
    assert len(study.asked_rules("all")) > 20


def test_a_run_is_a_row_once_and_pairs_begin_alike(tmp_path, monkeypatch):
    study.run(SMALL, ["uniform", "oracle_value"], [0], out=tmp_path, work=tmp_path / "work")
    path = tmp_path / f"runs_{SMALL.tag}.csv"
    uniform, oracle = rows(path)
    assert (uniform["rule"], oracle["rule"], oracle["signed"]) == ("uniform", "oracle_value", "1")
    assert uniform["accuracy_0"] == oracle["accuracy_0"]
    accuracy = [float(oracle[f"accuracy_{step}"]) for step in (0, 1, 2)]
    # Trapezoids of one step each.
    assert float(oracle["auc"]) == pytest.approx(
        (accuracy[0] / 2 + accuracy[1] + accuracy[2] / 2) / 2
    )
    assert {row["rule"] for row in rows(tmp_path / "not_run.csv")} >= {"rlsd", "gcpo"}

    made = []

    def again(setting, rule, seed):
        made.append((rule, seed))
        return dict(uniform, rule=rule, seed=seed)

    monkeypatch.setattr(study, "learned", again)
    study.run(SMALL, ["uniform", "oracle_value"], [0, 1], out=tmp_path, work=tmp_path / "work")
    assert made == [("uniform", 1), ("oracle_value", 1)]
    assert len(rows(path)) == 4


def test_the_same_seed_gives_all_rules_the_same_problems(tmp_path):
    seen = {}
    for rule in ("uniform", "random"):
        task = study.task_of(SMALL)

        def draw(count, seed, rule=rule, drawn=task.draw):
            found = drawn(count, seed)
            seen.setdefault(rule, []).append([problem.question for problem in found])
            return found

        (tmp_path / "work").mkdir(exist_ok=True)
        setting = study.setting(SMALL, work=tmp_path / "work")
        study.learned(setting._replace(task=task._replace(draw=draw)), rule, 3)
    assert len(seen["uniform"]) == 2
    assert seen["uniform"] == seen["random"]
