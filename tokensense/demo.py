"""The demonstration: three small policies whose tags are known to mean three different things.

Reads  the shipped policies `tiny:truthful`, `tiny:style` and `tiny:mixed`.
Gives  run: a folder with a store, figures and a page of tokens for each policy, and a report.

Each policy solves arithmetic and was taught with a word such as `verdict right` before some of its
solutions. In `truthful` that word told the outcome, in `style` it only went with another wording,
in `mixed` both. The analysis is not told which is which.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import xarray as xr

from tokensense.analysis import analyze
from tokensense.assignment import assign_credit
from tokensense.models.policy import Policy, load_policy
from tokensense.stats.rows import table
from tokensense.study import Study

TAUGHT = {
    "truthful": "the word told whether the solution was right",
    "style": "the word only went with terse wording",
    "mixed": "the word told the outcome with chance .6, and went with terse wording",
}


PROBLEMS_SHOWN = 4
# Statistics of the triple that tell the three apart.
SHOWN = {
    "mean_absolute_shift": "mean abs shift",
    "contrast_variance_share": "share of the contrast in the variance of shifts",
}
FOUND = {
    "hit_at_1": "first wrong token is the highest of its response, by",
    "auroc_at_equal_surprisal": "AUROC at equal surprisal, by",
}


@dataclass(frozen=True)
class Demo:
    """Sizes of the demonstration; chosen for a minute on two cores.

    Attributes:
        policies: which of `TAUGHT`.
        problems: of each policy.
        group: responses a problem.
        frames: sentences around the edited word.
        families: placebo families.
        resamples: of the cluster bootstrap.
        seed: of everything random.
    """

    policies: tuple[str, ...] = tuple(TAUGHT)
    problems: int = 60
    group: int = 4
    frames: int = 3
    families: int = 3
    resamples: int = 1_000
    seed: int = 0


def run(
    out: str | Path, *, config: Demo | None = None, tell: Callable[[str], None] = print
) -> list[str]:
    """Sample, probe, analyze, weigh and draw for each policy; goes on where it stopped.

    Args:
        out: folder for everything; made where it is missing.
        config: sizes; None for the defaults.
        tell: called with one line as each part begins.

    Returns:
        The report, line by line; also in `report.txt` of the folder.

    Raises:
        PolicyError: the shipped policies are not there.
        StoreError: the folder holds stores of another demonstration.
    """
    config, folder = config or Demo(), Path(out)
    found = {}
    for place, variant in enumerate(config.policies, 1):
        tell(f"{place}/{len(config.policies)} tiny:{variant}")
        study = Study(folder / f"{variant}.zarr")
        policy = load_policy(f"tiny:{variant}")
        found[variant] = _one(study, policy, config, out=folder / variant)
    report = [*_report(found), *_next(folder, config.policies)]
    (folder / "report.txt").write_text("\n".join(report) + "\n", encoding="utf-8")
    return report


def _one(study: Study, policy: Policy, config: Demo, *, out: Path) -> list[str]:
    """Everything for one policy; what was found, in plain words."""
    study.generate(policy, config.problems, task="arithmetic", group=config.group, seed=config.seed)
    study.probe(policy, frames=config.frames, families=config.families)
    # Before the analysis, which then tells how well their weights find the wrong token.
    credit = assign_credit(study, ["uniform", "cscr"])
    results = analyze(study, resamples=config.resamples, seed=config.seed)
    study.figures(out / "figures")
    study.view(out / "tokens.html", limit=PROBLEMS_SHOWN)
    return [*_named(results["character"]), *_shifts(results), *_located(results), _moved(credit)]


def _named(character: xr.Dataset) -> list[str]:
    """What the analysis calls the policy, not knowing its name."""
    return [f"analyze calls it: {character.attrs['word']}", f"  {character.attrs['statement']}"]


def _shifts(results: Mapping[str, xr.Dataset]) -> list[str]:
    """Triples that tell the three policies apart."""
    rows = {row.name: row for row in table(results, sections=("triple",))}
    return [
        f"{words}: verdict {row.value}, placebo {row.placebo}, difference {row.difference} "
        f"{row.unit}; {row.n}"
        for words, row in ((words, rows[name]) for name, words in SHOWN.items())
    ]


def _located(results: Mapping[str, xr.Dataset]) -> list[str]:
    """How well contrast and rarity find the first wrong token."""
    if "localization" not in results:
        return ["no wrong response with a known wrong token: nothing to find"]
    found = results["localization"]
    lines = []
    for statistic, words in FOUND.items():
        values = []
        for score in ("signed_contrast", "surprisal"):
            one = found.sel(statistic=statistic, score=score)
            low, high = one["interval"].values
            values.append(f"{score} {float(one['estimate']):.2f} [{low:.2f}, {high:.2f}]")
        lines.append(f"{words}: {', '.join(values)}; {found.attrs['n_rollouts']} wrong responses")
    return lines


def _moved(credit: xr.Dataset) -> str:
    """How much the rule does."""
    one = credit.sel(rule="cscr")
    return (
        f"CSCR puts {100 * float(one['moved']):.1f} % of the credit on other tokens than uniform "
        f"credit does ({int(one['tokens']):,} tokens)"
    )


def _report(found: Mapping[str, list[str]]) -> Iterator[str]:
    """What was found beside what had been planted."""
    for variant, lines in found.items():
        yield f"tiny:{variant}, taught with a word before the solution: {TAUGHT[variant]}"
        yield from (f"  {line}" for line in lines)
        yield ""


def _next(folder: Path, policies: Sequence[str]) -> list[str]:
    """Where everything is, and what to type next."""
    store = folder / f"{policies[-1]}.zarr"
    return [
        "95 % intervals over problems; verdict - placebo is what the verdict's meaning adds.",
        f"Figures: {folder}/*/figures; pages to open in a browser: {folder}/*/tokens.html",
        "Next:",
        f"  tokensense info {store}",
        f"  tokensense analyze {store}",
        "  tokensense import mine.zarr traces.jsonl --format jsonl --model FOLDER "
        "--field question=prompt --field text=completion --field reward=score",
    ]
