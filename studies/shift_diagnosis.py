"""What do shifts under verdicts say, and of what? Policies of known and of unknown truth.

    python -m studies.shift_diagnosis --out runs/shift_diagnosis
    python -m studies.shift_diagnosis --stores runs/gsm8k/store.zarr

The bundled tiny policies, whose tags are known to tell the outcome (`truthful`), to go with another
wording (`style`), both (`mixed`) or nothing (`placebo`), sample solutions of sums; their shifts are
analyzed under verdicts, four placebo families (all they know) and neutral words, on-policy. Stores
that other studies have probed (`placebo_bank`, `first_shifts`, `own_samples`) are analyzed beside.

Writes decision.csv (a line a store and endpoint), triples.csv (descriptions: verdict, placebo,
difference), claims.csv (rows 1, 4, 5, 7, 8 of the ledger, see `shift_claims`), decision.png, the
figures of each store, and page.md: all in plain words, with what would change them. Each tiny
policy takes some minutes of one core; a run that is stopped goes on where it was.
"""

import argparse
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import xarray as xr

import tokensense as ts
from studies.shift_claims import Finding, findings
from studies.shift_page import draw, page
from tokensense.errors import TokensenseError
from tokensense.stats.claims import judge, read_claims

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
    """Analyze a store; results of as many resamples, of whatever seed, are taken as they are."""
    found = study.results()
    if "decision" in found and found["decision"].attrs["resamples"] == config.resamples:
        return found
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
    beside = {"informative": _told(results), "beyond": _added(results)}
    table["beside"] = [beside.get(endpoint, "") for endpoint in table["endpoint"]]
    return table


def _added(results: Mapping[str, xr.Dataset]) -> str:
    """What an irrelevant word's shifts add in finding the wrong step."""
    if "beyond" not in results:
        return ""
    found = results["beyond"].sel(statistic="increase")
    values = {term: float(found["estimate"].sel(term=term)) for term in ("placebo", "difference")}
    low, high = found["interval"].sel(term="difference").values.tolist()
    if any(math.isnan(number) for number in (*values.values(), low)):
        return ""
    return (
        f"Beside it, with the shifts of irrelevant words: {values['placebo']:.3f}, difference "
        f"{values['difference']:.3f} [{low:.3f}, {high:.3f}]"
    )


def _told(results: Mapping[str, xr.Dataset]) -> str:
    """AUROC of what should know nothing: each irrelevant word pair, and the length."""
    if "controls" not in results:
        return ""
    found = results["controls"]["estimate"].sel(statistic="auroc_balanced")
    known = {str(score): float(found.sel(score=score)) for score in found["score"].values}
    parts = [f"{name} {value:.3f}" for name, value in known.items() if not math.isnan(value)]
    return f"Beside it, by scores that should not tell: {', '.join(parts)}" if parts else ""


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


def claim_lines(name: str, found: Mapping[int, Finding]) -> pd.DataFrame:
    """A line a row of the claims ledger."""
    rows = read_claims()
    lines = [
        {
            "store": name,
            "row": row,
            "estimate": one.estimate,
            "low": one.low,
            "high": one.high,
            "level": rows[row].level,
            "verdict": judge(rows[row], low=one.low, high=one.high),
            "n": one.n,
        }
        for row, one in sorted(found.items())
    ]
    return pd.DataFrame(lines)


def chosen(
    variants: Sequence[str], stores: Sequence[Path], config: Config, *, out: Path
) -> Iterator[tuple[str, str, ts.Study]]:
    """Name, planted truth and store of each."""
    for variant in variants:
        yield f"tiny:{variant}, own samples", TAUGHT[variant], tiny_study(variant, config, out=out)
    for path in stores:
        study = ts.Study(path)
        yield f"{path.parent.name}: {study.info()['scored_by']}", "", study


def main(
    config: Config,
    *,
    out: Path,
    variants: tuple[str, ...] = tuple(TAUGHT),
    stores: Sequence[Path] = (),
) -> None:
    """Diagnose each; print and write the tables, figures and the page."""
    out.mkdir(parents=True, exist_ok=True)
    decisions, triples, lines = [], [], []
    claims: dict[str, Mapping[int, Finding]] = {}
    said: dict[str, tuple[str, str]] = {}
    for name, truth, study in chosen(variants, stores, config, out=out):
        print(name, file=sys.stderr)
        found = diagnosed(study, config)
        decisions.append(decision_lines(name, found))
        triples.append(triple_lines(name, found))
        claims[name] = findings(study, found, resamples=config.resamples, seed=config.seed)
        lines.append(claim_lines(name, claims[name]))
        said[name] = (str(found["decision"].attrs["statement"]), truth)
        study.figures(out / "figures" / name.split(",")[0].split(": ")[0].replace(":", "_"))
    every = pd.concat(decisions)
    every.to_csv(out / "decision.csv", index=False)
    pd.concat(triples).to_csv(out / "triples.csv", index=False)
    pd.concat(lines).to_csv(out / "claims.csv", index=False)
    draw(every, out / "decision.png")
    text = page(every, said, claims=claims)
    (out / "page.md").write_text(text, "utf-8")
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
