"""All rules over one small part: nothing is silently left out, and ties and subsets count right."""

import csv

import numpy as np
import pytest

from studies import all_rules as study
from studies.all_evidence import Setting
from studies.all_parts import TINY, Part
from tests.credit.builders import arrays
from tokensense.credit import CATALOGUE
from tokensense.credit.report import rank_correlations


def part(*, lacking=()):
    """Made-up evidence of twelve responses, without a model."""
    found = arrays([5, 9, 2, 7] * 3, seed=4)
    rng = np.random.default_rng(0)
    found["group"] = np.repeat(np.arange(3), 4)
    found["reward"] = np.tile([1.0, 1.0, 0.0, 0.0], 3)
    found["advantage"] = np.tile([1.0, 1.0, -1.0, -1.0], 3)
    found["kind"] = rng.choice(["digit", "format"], int(found["length"].sum()))
    for name in lacking:
        found[name][: found["length"][:4].sum()] = np.nan
    setting = Setting(None, {}, [], [], [], found, False)
    return Part("made_up", setting, None, found, {"z_pos": "nobody asked"}, {})


def test_every_rule_has_a_line_or_a_reason():
    whole = part()
    given = {name: study.dealt(whole, name, rule, config=TINY) for name, rule in CATALOGUE.items()}
    assert not [name for name, found in given.items() if isinstance(found, str)]
    del whole.evidence["z_pos"]
    why = study.dealt(whole, "cscr", CATALOGUE["cscr"], config=TINY)
    assert why == "z_pos: nobody asked"


def test_rules_are_asked_about_the_responses_whose_evidence_is_whole():
    some = part(lacking=["negative_prompt"])
    found = study.dealt(some, "gcpo", CATALOGUE["gcpo"], config=TINY)
    assert found.kept.tolist() == [False] * 4 + [True] * 8
    assert np.isnan(found.along[: some.evidence["length"][:4].sum()]).all()
    assert found.line["rollouts"] == 8


def test_pairs_are_compared_over_what_both_were_asked_about():
    some = part(lacking=["negative_prompt"])
    given = {n: study.dealt(some, n, CATALOGUE[n], config=TINY) for n in ("gcpo", "optw", "gtpo")}
    names, matrix = study.correlations(some, given)
    length = some.evidence["length"]
    inside = np.arange(int(length.sum())) >= length[:4].sum()
    both = {n: given[n].along[inside] for n in ("gcpo", "optw")}
    expected = rank_correlations(both, length[4:])[0, 1]
    one, other = names.index("gcpo"), names.index("optw")
    assert matrix[one, other] == pytest.approx(expected)
    assert matrix[other, one] == pytest.approx(expected)
    everywhere = {n: given[n].along for n in ("optw", "gtpo")}
    found = matrix[other, names.index("gtpo")]
    assert found == pytest.approx(rank_correlations(everywhere, length)[0, 1])


def test_uniform_gains_as_much_as_itself_and_credit_along_the_value_most():
    whole = part()
    every = np.ones(12, bool)
    even = np.repeat(whole.evidence["advantage"], whole.evidence["length"])
    whole.evidence["learning_value"] = whole.evidence["learning_value"] + even
    found = study.learning_gain(whole, even, kept=every, config=TINY)
    assert found["learning_gain"] == pytest.approx(1)
    # All credit along the value itself is the most that can be gained.
    best = whole.evidence["learning_value"] / whole.evidence["distance"] ** 2
    assert study.learning_gain(whole, best, kept=every, config=TINY)["learning_gain"] > 1


@pytest.mark.slow
def test_a_tiny_part_runs_and_no_rule_is_missing(tmp_path):
    study.main("mixed", TINY, out=tmp_path, work=tmp_path, store=tmp_path, model="")
    with (tmp_path / "rules_mixed.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(CATALOGUE)
    assert not [row["rule"] for row in rows if row["not_run"]]
    (uniform,) = (row for row in rows if row["rule"] == "uniform")
    assert float(uniform["auroc"]) == 0.5
    assert float(uniform["learning_gain"]) == 1
