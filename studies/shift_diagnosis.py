"""What do shifts under verdicts say, and of what? Policies of known and of unknown truth.

    python -m studies.shift_diagnosis --out runs/shift_diagnosis
    python -m studies.shift_diagnosis --stores runs/gsm8k/store.zarr

The bundled tiny policies, whose tags are known to tell the outcome (`truthful`), to go with another
wording (`style`), both (`mixed`) or nothing (`placebo`), sample solutions of sums; their shifts are
analyzed under verdicts, four placebo families (all they know) and neutral words, on-policy. Stores
that other studies have probed (`placebo_bank`, `first_shifts`, `own_samples`) are analyzed beside.

Writes decision.csv (a line a store and endpoint), triples.csv (descriptions: verdict, placebo,
difference) and page.md, the same in plain words. Each tiny policy takes some minutes of one core; a
run that is stopped goes on where it was.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import xarray as xr

import tokensense as ts
from tokensense.errors import TokensenseError

TAUGHT = {
    "truthful": "the word told whether the solution was right",
    "style": "the word only went with terse wording",
    "mixed": "the word told the outcome with chance .6, and went with terse wording",
    "placebo": "the word meant nothing",
}
DESCRIBED = (
    "same_direction",
    "same_direction_above_floor",
    "contrast_variance_share",
    "rank_correlation",
    "mean_absolute_shift",
    "mean_absolute_contrast",
)


@dataclass(frozen=True)
class Config:
    """What was fixed before the first run.

    Attributes:
        problems: of each tiny policy; E2 needs 300 with right and wrong responses.
        group: responses a problem.
        families: placebo families.
        resamples: of the bootstrap.
        seed: of everything random.
    """

    problems: int = 600
    group: int = 4
    families: int = 4
    resamples: int = 10_000
    seed: int = 7


TINY = Config(problems=24, group=4, families=3, resamples=500)


def diagnosed(study: ts.Study, config: Config) -> Mapping[str, xr.Dataset]:
    """Analyze a store, once."""
    return ts.analyze(study, resamples=config.resamples, seed=config.seed)


def tiny_study(variant: str, config: Config, *, out: Path) -> ts.Study:
    """Sample and probe one bundled policy."""
    policy = ts.load_policy(f"tiny:{variant}")
    study = ts.Study(out / f"{variant}.zarr")
    study.generate(policy, config.problems, task="arithmetic", group=config.group, seed=config.seed)
    study.probe(policy, families=config.families)
    return study


def decision_lines(name: str, results: Mapping[str, xr.Dataset]) -> pd.DataFrame:
    """A line an endpoint."""
    found = results["decision"]
    table = found.drop_dims("bound").to_dataframe().reset_index()
    table.insert(0, "store", name)
    table["low"], table["high"] = found["interval"].values.T
    table["word"] = found.attrs["word"]
    return table


def triple_lines(name: str, results: Mapping[str, xr.Dataset]) -> pd.DataFrame:
    """A line a description and term."""
    found = results["triple"]
    kept = [statistic for statistic in DESCRIBED if statistic in found["statistic"].values]
    one = found.sel(statistic=kept)
    table = one["estimate"].to_dataframe().reset_index()[["statistic", "term", "estimate"]]
    table.insert(0, "store", name)
    table["low"] = one["interval"].sel(bound="low").values.ravel()
    table["high"] = one["interval"].sel(bound="high").values.ravel()
    return table


def page(decisions: pd.DataFrame, said: Mapping[str, tuple[str, str]]) -> str:
    """The decisions in plain words."""
    lines = [
        "# What shifts under verdicts say",
        "",
        "Words by thresholds that were fixed before any run (`tokensense.stats.decision`). 95 %",
        "intervals over problem texts; the statements use 90 % intervals where a band is an",
        "equivalence band. An endpoint that could not be estimated says why.",
        "",
    ]
    for name, own in decisions.groupby("store", sort=False):
        statement, truth = said[str(name)]
        lines += [f"## {name}", ""]
        lines += [f"Planted truth: {truth}.", ""] * bool(truth)
        lines += [f"**{own['word'].iloc[0]}**: {statement}", ""]
        for row in own.itertuples():
            number = f"{row.estimate:.3f} [{row.low:.3f}, {row.high:.3f}]"
            p = f", p {row.p:.3g}, Holm {row.p_holm:.3g}" if row.p == row.p else ""
            counts = f"{row.n_clusters:.0f} texts, {row.n_rollouts:.0f} rollouts"
            known = row.estimate == row.estimate
            lines.append(
                f"* {row.meaning}: " + (f"{number}{p}; {counts}" if known else f"{row.statement}")
            )
        lines.append("")
    return "\n".join(lines)


def main(
    config: Config,
    *,
    out: Path,
    variants: tuple[str, ...] = tuple(TAUGHT),
    stores: Sequence[Path] = (),
) -> None:
    """Diagnose each; print and write the tables and the page."""
    out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Mapping[str, xr.Dataset]] = {}
    truths: dict[str, str] = {}
    for variant in variants:
        print(f"tiny:{variant}", file=sys.stderr)
        name = f"tiny:{variant}, own samples"
        found[name] = diagnosed(tiny_study(variant, config, out=out), config)
        truths[name] = TAUGHT[variant]
    for path in stores:
        print(path, file=sys.stderr)
        study = ts.Study(path)
        name = f"{path.parent.name}: {study.info()['scored_by']}"
        found[name] = diagnosed(study, config)
        truths[name] = ""
    decisions = pd.concat([decision_lines(*item) for item in found.items()])
    triples = pd.concat([triple_lines(*item) for item in found.items()])
    said = {
        name: (str(results["decision"].attrs["statement"]), truths[name])
        for name, results in found.items()
    }
    decisions.to_csv(out / "decision.csv", index=False)
    triples.to_csv(out / "triples.csv", index=False)
    text = page(decisions, said)
    (out / "page.md").write_text(text + "\n", "utf-8")
    print(text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--policies", nargs="*", choices=TAUGHT, default=list(TAUGHT))
    parser.add_argument("--stores", nargs="*", type=Path, default=[], help="probed before")
    parser.add_argument("--out", type=Path, default=Path("runs/shift_diagnosis"))
    parser.add_argument("--tiny", action="store_true", help="24 problems a policy: seconds")
    given = parser.parse_args()
    try:
        main(
            TINY if given.tiny else Config(),
            variants=tuple(given.policies),
            stores=given.stores,
            out=given.out,
        )
    except TokensenseError as error:
        sys.exit(f"shift_diagnosis: {error}")
