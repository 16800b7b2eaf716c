"""When a diagnostic fires, what its limit is, and that a run goes on where it stopped."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

from studies import detection_limit as study
from tokensense.models import tiny


def found(low, high):
    intervals = xr.Dataset(
        {
            "estimate": ("quantity", [(low + high) / 2]),
            "interval": (("quantity", "bound"), [[low, high]]),
        },
        coords={"quantity": ["auroc"]},
    )
    return {"character": intervals}


def test_a_diagnostic_fires_where_its_whole_interval_lies_beyond():
    above = study.Rule("told", "character", {"quantity": "auroc"}, "above", 0.5, "x")
    assert above.fires(found(0.51, 0.61)) == (0.56, True)
    assert above.fires(found(0.49, 0.61))[1] is False
    below = above._replace(side="below")
    assert below.fires(found(0.2, 0.4))[1] is True
    assert below.fires(found(0.51, 0.61))[1] is False
    nothing = above.fires(found(np.nan, np.nan))
    assert np.isnan(nothing[0])
    assert nothing[1] is False
    assert above.fires({})[1] is False


def test_the_committed_rules_ask_for_what_analyze_gives():
    rules = study.rules()
    assert len({rule.name for rule in rules}) == len(rules) == 7
    assert {rule.section for rule in rules} == {"character", "triple"}
    assert {rule.side for rule in rules} == {"above", "below"}


def row(share, number, *, fires):
    names = [rule.name for rule in study.rules()]
    values = {name: int(fires(name)) for name in (study.NAMED, *names)}
    values |= {f"{name}_estimate": 0.5 for name in names}
    about = {"share": share, "number": number, "policy": f"p{share}"}
    return {name: str(value) for name, value in {**about, **values}.items()}


def test_the_limit_is_the_lowest_share_from_which_on_it_fires():
    # `told` fires at .4 and above; `push` everywhere; `size` at .2 and .6 but not at .4
    fires = {
        "told": {0.4, 0.6},
        "push": {0.0, 0.2, 0.4, 0.6},
        "size": {0.2, 0.6},
    }
    rows = [
        row(share, number, fires=lambda name, share=share: share in fires.get(name, ()))
        for share in (0.0, 0.2, 0.4, 0.6)
        for number in range(20)
    ]
    rows[40] |= {"told": "0"}  # 19 of 20 at .4 are enough
    table = study.shares_table(rows)
    at = {(r["diagnostic"], r["share"]): r for r in table}
    assert at["told", 0.4]["fired"] == 0.95
    assert at["told", 0.4]["studies"] == 20
    assert at["told", 0.4]["low"] < 0.75
    limits = {r["diagnostic"]: r for r in study.limits_table(table)}
    assert limits["told"] == {"diagnostic": "told", "limit": 0.4, "false_alarms": 0.0}
    assert limits["push"]["limit"] == "fires without truth"
    assert limits["push"]["false_alarms"] == 1.0
    assert limits["size"]["limit"] == 0.6
    assert limits["named"]["limit"] == "none"


def test_a_run_goes_on_where_it_stopped(tmp_path, monkeypatch):
    config = replace(study.TINY, studies=2)
    asked, trained = [], []

    def line(folder, share, seed, number, config):
        asked.append((share, number))
        made = row(share, number, fires=lambda name: False)
        return {**made, **study.key(share, seed, number), "word": "x", "rules": study.digest()}

    def train(own, *, out):
        trained.append((own.tags.truth, own.tags.style, own.seed, own.steps, own.problems))
        (out / own.name).mkdir()
        (out / own.name / tiny.CARD).write_text(json.dumps({}))

    monkeypatch.setattr(study, "line", line)
    monkeypatch.setattr(study.build_tiny_policy, "main", train)
    study.main(config, out=tmp_path, policies=tmp_path / "p")
    assert asked == [(0.0, 0), (1.0, 0), (0.0, 1), (1.0, 1)]  # a round over all shares first
    assert trained == [(0.0, 0.0, 701, 20, 16), (1.0, 0.0, 701, 20, 16)]
    kept = (tmp_path / study.LINES).read_text().splitlines(keepends=True)[:-1]
    (tmp_path / study.LINES).write_text("".join(kept))
    with (tmp_path / study.LINES).open("a") as file:
        file.write(kept[-1])  # two runs have made one study
    study.main(config, out=tmp_path, policies=tmp_path / "p")
    assert asked[4:] == [(1.0, 1)]
    assert len(trained) == 2
    study.main(config, out=tmp_path / "part", policies=tmp_path / "p", only=[1.0])
    assert asked[5:] == [(1.0, 0), (1.0, 1)]
    with (tmp_path / study.TABLE).open() as file:
        assert {r["studies"] for r in csv.DictReader(file)} == {"2"}
    text = (tmp_path / "page.md").read_text()
    assert "4 of 4 studies are done." in text
    assert "| truth 0, n 2 | truth 1, n 2 |" in text
    assert "* told: none" in text
    part = study.page(table := study.shares_table(study.known(tmp_path)), [], planned=9)
    assert "a part of the ladder, from which no limit is read" in part
    assert len(table) == 16
    assert "* told" not in part


@pytest.mark.slow
def test_a_tiny_run_trains_studies_and_adds_up(tmp_path):
    study.main(study.TINY, out=tmp_path, policies=tmp_path / "p")
    with (tmp_path / study.LINES).open() as file:
        rows = list(csv.DictReader(file))
    assert [row["share"] for row in rows] == ["0.0", "1.0"]
    assert len({row["policy"] for row in rows}) == 2
