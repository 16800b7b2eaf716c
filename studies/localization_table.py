"""Which score finds the first wrong token of tiny policies: raw, and at equal surprisal.

    OMP_NUM_THREADS=1 python -m studies.localization_table --out runs/localization

Each variant answers planted problems; on its wrong responses every score is asked for the first
wrong token. `localization.csv` has a row a variant and score, each statistic with its 95 % interval
(one-stage bootstrap of problems) and n. The raw AUROC is to be read beside the one at equal
surprisal, and that beside the one at equal surprisal and kind: shifts are larger where tokens are
rare, and wrong tokens are rare digits.

Stores are kept; a run that is stopped goes on. Source: notes/tinymodel.md, section 5, whose numbers
are of one wording and of another seed; there the control for rarity was p < .2.
"""

import argparse
import csv
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import xarray as xr

import tokensense as ts
from tokensense.errors import TokensenseError
from tokensense.models import tiny

RULES = ("cscr",)
CLOSEST = "auroc_at_equal_surprisal_and_kind"


@dataclass(frozen=True)
class Config:
    """What was fixed before the first run.

    Attributes:
        variants: shipped policies of the arithmetic.
        problems: of each study.
        group: rollouts a problem.
        max_new_tokens: longest rollout.
        frames: first words of the tags.
        families: placebo pairs.
        resamples: of the cluster bootstrap.
        seed: of problems and samples.
    """

    variants: tuple[str, ...] = ("truthful", "style", "mixed", "placebo")
    problems: int = 64
    group: int = 8
    max_new_tokens: int = 96
    frames: int = 3
    families: int = 3
    resamples: int = 10_000
    seed: int = 0


TINY = Config(variants=("mixed",), problems=8, group=2, frames=1, resamples=100)


def located(variant: str, config: Config, *, out: Path) -> xr.Dataset:
    """The localization of one variant."""
    policy = ts.load_policy(tiny.SCHEME + variant)
    study = ts.Study(out / f"{variant}.zarr")
    sizes = {"group": config.group, "max_new_tokens": config.max_new_tokens, "seed": config.seed}
    study.generate(policy, config.problems, task="arithmetic", **sizes)
    study.probe(policy, ("opposed", "placebo"), frames=config.frames, families=config.families)
    ts.assign_credit(study, RULES)
    return ts.analyze(study, resamples=config.resamples, seed=config.seed)["localization"]


def rows(variant: str, found: xr.Dataset) -> Iterator[dict[str, str | float | int]]:
    """A row a score."""
    for score in found["score"].values.tolist():
        one = found.sel(score=score)
        row: dict[str, str | float | int] = {
            "variant": variant,
            "score": score,
            "direction": str(one["direction"].item()),
        }
        for statistic in found["statistic"].values.tolist():
            at = one.sel(statistic=statistic)
            low, high = at["interval"].values
            for suffix, value in (("", at["estimate"].item()), ("_low", low), ("_high", high)):
                row[statistic + suffix] = round(float(value), 4)
            row[f"{statistic}_n"] = int(found["n_compared"].sel(statistic=statistic))
        row |= {"problems": int(one["n_clusters"].max())}
        yield row | {"rollouts": found.attrs["n_rollouts"], "tokens": found.attrs["n_tokens"]}


def shown(row: dict[str, str | float | int]) -> str:
    """A row for a terminal."""
    numbers = (
        f"{row['auroc']:.3f} / {row['auroc_at_equal_surprisal']:.3f} / {row[CLOSEST]:.3f} "
        f"[{row[CLOSEST + '_low']:.3f}, {row[CLOSEST + '_high']:.3f}]",
        f"AP {row['average_precision']:.3f}",
        f"hit@1 {row['hit_at_1']:.3f}",
    )
    return f"{row['variant']:<9} {row['score']:<26} AUROC " + "  ".join(numbers)


def main(config: Config, *, out: Path) -> None:
    """All variants, one table."""
    out.mkdir(parents=True, exist_ok=True)
    table = []
    for variant in config.variants:
        found = located(variant, config, out=out)
        print(f"{variant}: {found.attrs['statement']}")
        table += list(rows(variant, found))
    with (out / "localization.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(table[0]))
        writer.writeheader()
        writer.writerows(table)
    print(*map(shown, table), sep="\n")
    print(f"AUROC raw / at equal surprisal / and kind; {out / 'localization.csv'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="runs/localization, with --tiny another folder")
    parser.add_argument("--tiny", action="store_true", help="one variant, 8 problems")
    given = parser.parse_args()
    out = given.out or Path("runs/localization_tiny" if given.tiny else "runs/localization")
    try:
        main(TINY if given.tiny else Config(), out=out)
    except TokensenseError as error:
        sys.exit(f"localization_table: {error}")
