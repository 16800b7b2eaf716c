import csv

import pytest

from studies import centers as study


def test_tables_of_a_small_study(tmp_path, capsys):
    study.main(study.TINY, out=tmp_path)

    def table(name):
        with (tmp_path / name).open(newline="") as file:
            return list(csv.DictReader(file))

    numbers = {
        (row["geometry"], row["of"], row["number"]): float(row["value"])
        for row in table("numbers.csv")
    }
    proxies = ("row", "hidden", "hidden, top 8", "head")
    assert {key[0] for key in numbers} == {*proxies, "exact"}
    # Advantages are of the sample, whatever the geometry; with group means taken off they balance.
    tilts = [numbers[name, "uniform", "tilt"] for name in ("row", "head", "exact")]
    assert tilts == pytest.approx([tilts[0]] * 3)
    for name in ("row", "exact"):
        assert -1 <= numbers[name, "uniform", "cosine"] <= 1
        # In the pool that they were fitted to, the centers move apart.
        assert numbers[name, "delta", "contrast"] > numbers[name, "uniform", "contrast"]
    rows = table("claims.csv")
    assert {row["row"] for row in rows} == {"16", "17", "18", "19"}
    agreements = {row["number"]: float(row["estimate"]) for row in rows if row["row"] == "19"}
    assert list(agreements) == [
        f"Spearman of alpha, {name} against exact, p < .9" for name in proxies
    ]
    assert all(-1 <= agreement <= 1 for agreement in agreements.values())
    blind = [row for row in rows if "shuffled" in row["number"]]
    assert [row["row"] for row in blind] == ["17"]
    assert any(row["word"] == "=" for row in table("types.csv"))
    assert "Spearman" in capsys.readouterr().out
