"""One page about a store: what was found, beside what limits it.

Reads  a Study that was analyzed: results, notes, info; draws its figures and a page of tokens.
Gives  write_report: report.html (holds all it shows, fetches nothing), report.md, figures/.
Sign   as in the tables: difference = verdict - placebo.
"""

import base64
from collections.abc import Mapping, Sequence
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jinja2 import Environment
from markupsafe import Markup

from tokensense.figures.export import write_files

if TYPE_CHECKING:
    from tokensense.study import Study

TITLES = {
    "decision": "Decision",
    "character": "What the verdicts do",
    "read": "E1: are verdicts read?",
    "informative": "E2: do they know right from wrong?",
    "beyond": "E3: beyond uncertainty?",
    "triple": "Shifts: verdict, placebo, difference",
    "kind": "Shifts by kind of token",
    "kind_permuted": "Kinds beyond permuted kinds of the same place and surprisal",
    "floor": "Wording floor",
    "neutral": "Neutral sentences",
    "controls": "Controls of the answer signal",
    "localization": "Which scores find the first wrong token",
}
HEADS = ("statistic", "verdict, or alone", "placebo", "difference", "unit", "n")


class Section(NamedTuple):
    """A table of the report; rows are cells of text, the first one a heading."""

    name: str
    title: str
    heads: tuple[str, ...]
    rows: list[tuple[str, ...]]


class Figure(NamedTuple):
    """A figure: name, PNG as base64, caption."""

    name: str
    data: str
    caption: str


def write_report(
    study: "Study", out: str | Path, *, problems: int = 4, style: str = "neurips"
) -> list[Path]:
    """Write the report of a store.

    Args:
        study: that was analyzed.
        out: folder; files of the same names are replaced.
        problems: whose tokens are shown.
        style: of the figures.

    Returns:
        Paths of `report.html` and `report.md`.

    Raises:
        StoreError: there is no store, or it was not analyzed.
        FigureError: a figure cannot be drawn, or a file not written.
        StatisticsError: there is no verdict pair, or no placebo pair to put beside it.
    """
    folder = Path(out)
    info, sections, marks = study.info(), _sections(study), study.notes()
    manifest = study.figures(folder / "figures", style=style)
    page = study.view(limit=problems)
    about: dict[str, Any] = {
        "title": f"Report on {study.path.name}",
        "lead": _lead(info),
        "marks": marks,
        "sections": sections,
        "methods": _methods(manifest, study.results()),
        "made": _made(info, manifest),
    }
    names = list(manifest["figures"])
    captions = {name: manifest["figures"][name]["caption"] for name in names}
    figures = [
        Figure(name, base64.b64encode(png.read_bytes()).decode("ascii"), captions[name])
        for name in names
        if (png := folder / "figures" / f"{name}.png").exists()
    ]
    template = Environment(autoescape=True).from_string(
        files("tokensense").joinpath("report.html").read_text("utf-8")
    )
    html = template.render(**about, figures=figures, tokens=Markup(page._repr_html_()))
    markdown = _markdown(about, captions)
    page.save(folder / "tokens.html")
    write_files(folder, {"report.html": html.encode(), "report.md": markdown.encode()})
    return [folder / "report.html", folder / "report.md"]


def _sections(study: "Study") -> list[Section]:
    """The rows of `Study.table`, a table a section."""
    found = []
    for name, members in groupby(study.table(), key=lambda row: row.section):
        rows = [tuple(map(str, row[1:])) for row in members]
        kept = [i for i in range(len(HEADS)) if i == 0 or any(row[i] for row in rows)]
        found.append(
            Section(
                name,
                TITLES.get(name, name),
                tuple(HEADS[i] for i in kept),
                [tuple(row[i] for i in kept) for row in rows],
            )
        )
    return found


def _lead(info: Mapping[str, Any]) -> str:
    """What the store holds, in two sentences."""
    policy = "off-policy" if info.get("off_policy", True) else "on-policy"
    names = ", ".join(info["sampled_by"])
    sampled = f"sampled by {names}" if names else "who sampled them is not known"
    return (
        f"{info['rollouts']:,} rollouts of {info['problems']:,} problems "
        f"({info['question_texts']:,} question texts), {info['tokens']:,} tokens; "
        f"{sampled}, scored by {info['scored_by']} ({policy}). "
        "Intervals are 95 % over problem texts; difference is verdict minus placebo, the same "
        "sentence with an irrelevant word."
    )


def _methods(manifest: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    """A paragraph for a paper; what it says is taken from the store."""
    provenance, attrs = manifest["provenance"], results["triple"].attrs
    pairs, families = provenance["verdict_pairs"], provenance["placebo_families"]
    versions = ", ".join(f"{name} {found}" for name, found in manifest["versions"].items())
    return (
        "Sampled responses were frozen and every token scored again by "
        f"{provenance['scored_by']} with a verdict put into the prompt ({len(pairs)} pairs of "
        "sentences that differ in one word), and with an irrelevant word in the same sentence "
        f"({len(families)} placebo families: {', '.join(families)}); contexts of a pair have the "
        "same number of tokens and open the response alike. Shifts are differences of "
        "log-probabilities of the sampled tokens, nats. Statistics are functions of sums over "
        f"problem texts; intervals by a one-stage cluster bootstrap ({attrs['resamples']} "
        f"resamples, seed {attrs['seed']}) over texts, t intervals below 20 texts and none below "
        f"8. Made with {versions}."
    )


def _made(info: Mapping[str, Any], manifest: Mapping[str, Any]) -> list[str]:
    """Versions, commits and digests, a line each."""
    provenance = manifest["provenance"]
    made = [f"policy digest {provenance['policy_digest']}", f"commit {provenance['commit']}"]
    for node, said in sorted(info.get("made_with", {}).items()):
        made.append(f"{node}: {said.get('command', '')}")
    return made


def _markdown(about: Mapping[str, Any], captions: Mapping[str, str]) -> str:
    """The same as Markdown, figures as links."""
    lines = [f"# {_plain(about['title'])}", "", _plain(about["lead"]), ""]
    lines += [f"> {_plain(mark)}\n" for mark in about["marks"]]
    for section in about["sections"]:
        lines += [f"## {section.title}", "", _row(section.heads)]
        lines += ["|" + "---|" * len(section.heads), *map(_row, section.rows), ""]
    lines += ["## Figures", ""]
    for name, caption in captions.items():
        lines += [f"![{name}](figures/{name}.png)", "", _plain(caption), ""]
    lines += ["## Tokens", "", "[tokens.html](tokens.html)", "", "## Methods", ""]
    lines += [_plain(about["methods"]), "", "## Made with", ""]
    return "\n".join([*lines, *(f"* {_plain(line)}" for line in about["made"])]) + "\n"


def _row(cells: Sequence[str]) -> str:
    """A line of a Markdown table."""
    return "| " + " | ".join(map(_plain, cells)) + " |"


def _plain(text: str) -> str:
    """Text that Markdown shows as it is."""
    for mark in ("\\", "|", "<", "*", "_", "`", "[", "]"):
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())
