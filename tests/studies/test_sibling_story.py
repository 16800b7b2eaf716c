"""Ranks, shares and tokens that the page of the story names."""

import csv

import pytest

from studies import sibling_story as study


def rows(side="right"):
    """Three tokens; the second is the digit."""
    weights = dict.fromkeys(study.PAIRS, (5.0, 3.0, 2.0)) | {"same": (0.5, 3.0, 1.5)}
    return [
        {
            "response": side,
            "token": token,
            "first_differing": str(int(token == "4")),
            **{f"contrast_{name}": "0.7" if token == "4" else "-0.1" for name in study.PAIRS},
            **{f"{name}/sibling": str(own[place]) for name, own in weights.items()},
        }
        for place, token in enumerate((" =", "4", "5"))
    ]


def test_rank_and_share_of_the_digit():
    assert study.place_of_digit(rows(), "other/sibling") == (2, 0.3)
    assert study.place_of_digit(rows(), "same/sibling") == (1, 0.6)


def test_heaviest_tokens_stand_behind_what_they_follow():
    assert study.heaviest(rows(), "same/sibling") == "“ =**4**”, “ =4**5**”, “**=**”"


def test_page_and_figure_are_made_of_the_tables(tmp_path):
    keys = ("policy", "response", "siblings", "rule", "share", "low", "high", "n")
    shares = [
        dict(zip(keys, ("a", side, "same", rule, ".5", ".25", ".75", "8"), strict=True))
        for side in study.SIDES
        for rule in ("sibling", "gcpo")
    ]
    for name, lines in {"story": [*rows(), *rows("wrong")], "shares": shares}.items():
        with (tmp_path / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(lines[0]))
            writer.writeheader()
            writer.writerows(lines)
    study.main(tmp_path)
    assert (tmp_path / "story.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / "story.md").read_text(encoding="utf-8")
    assert text.count("| a | same | 0.50 | [0.25, 0.75] | 8 |") == 1
    assert "| wrong: 15 × 3 = 35 | same route: C says 35 | 1 of 3 | 60% |" in text


@pytest.mark.parametrize("value", ["0.49", "0.51"])
def test_small_contrasts_are_colored_only(value):
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    study.draw(axes, [row | {"contrast_same": value} for row in rows()])
    written = [text.get_text() for text in axes.texts]
    assert written.count("0.5") == (3 if value == "0.51" else 0)
