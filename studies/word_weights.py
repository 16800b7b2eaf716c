"""Do credit rules weigh "because" more than "maybe"? Word classes at matched surprisal, per rule.

    python -m studies.word_weights runs/gsm8k/store.zarr runs/first_shifts/store.zarr

Reads stores that were probed with verdicts and placebos; assigns every rule that they have the
evidence for and that multiplies the advantage. A token belongs to a class when its text, bare and
in lower case, is one of its words; the classes were written down before any weight was seen:
BECAUSE, words that give a reason or draw a conclusion, and HEDGE, words that take certainty back.

`ratio` is the mean weight of BECAUSE over that of HEDGE, each BECAUSE mean taken within quarters of
the hedges' surprisal and joined as the hedges lie in them, so that rarity alone gives 1. `raw` is
the ratio of plain means. 95 % intervals: one-stage bootstrap of problem texts. Row 24 of
methods/claims.md, whose rule is `optw`. Off-policy, two sets of texts; hedges are rare in them, and
n says so.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

import tokensense as ts
from studies.rows import written
from tokensense.credit import CATALOGUE
from tokensense.errors import InputError, TokensenseError
from tokensense.stats.resampling import Estimates, Resampling, cluster_sums, intervals, resample

BECAUSE = ("because", "since", "therefore", "thus", "hence", "so")
HEDGE = (
    *("maybe", "perhaps", "might", "may", "could", "possibly", "probably", "likely", "seems"),
    *("assume", "assuming", "suppose"),
)


@dataclass(frozen=True)
class Config:
    """What was fixed before the first run.

    Attributes:
        strata: of the hedges' surprisal.
        resamples: of problem texts.
        seed: of the resamples.
    """

    strata: int = 4
    resamples: int = 10_000
    seed: int = 0


TINY = Config(resamples=100)


class Words(NamedTuple):
    """Tokens of both classes, of all stores.

    weight: [rule, word], NaN where a rule left the rollout out. surprisal: nats. hedge: of which
    class. cluster: problem text.
    """

    rules: list[str]
    weight: np.ndarray
    surprisal: np.ndarray
    hedge: np.ndarray
    cluster: np.ndarray


def weights_in(store: Path) -> Words:
    """Weights of the words of one store under all rules that it has the evidence for."""
    study = ts.Study(store)
    found: dict[str, np.ndarray] = {}
    surprisal = np.zeros(0)
    for name, rule in CATALOGUE.items():
        if rule.form == "multiplies":
            try:
                credit = ts.assign_credit(study, [name])
            except TokensenseError:  # evidence that these probes do not give
                continue
            found[name] = credit["weight"].sel(rule=name).values
            surprisal = credit["surprisal"].values
    tokens = study.tokens()
    text = np.array([word.strip().lower() for word in tokens["text"].values.astype(str)])
    chosen = np.isin(text, BECAUSE + HEDGE)
    return Words(
        list(found),
        np.stack(list(found.values()))[:, chosen],
        surprisal[chosen],
        np.isin(text, HEDGE)[chosen],
        np.array([f"{store}:{one}" for one in tokens["cluster"].values[chosen].tolist()]),
    )


def joined(parts: Sequence[Words]) -> Words:
    """All stores as one; rules that all of them have."""
    rules = [name for name in parts[0].rules if all(name in part.rules for part in parts)]
    rows = [part.weight[[part.rules.index(name) for name in rules]] for part in parts]
    columns = [np.concatenate(column) for column in zip(*(part[2:] for part in parts), strict=True)]
    return Words(rules, np.concatenate(rows, axis=1), *columns)


def ratios(words: Words, weight: np.ndarray, config: Config) -> Estimates:
    """Matched and raw ratio of one rule, [2]; its words that have a weight."""
    known = np.isfinite(weight)
    hedge, surprisal, weight = words.hedge[known], words.surprisal[known], weight[known]
    _, cluster = np.unique(words.cluster[known], return_inverse=True)
    edges = np.quantile(surprisal[hedge], np.linspace(0, 1, config.strata + 1)[1:-1])
    stratum = np.searchsorted(edges, surprisal, side="right")
    # Of each problem: count and weight of both classes in every stratum.
    parts = np.zeros((len(weight), 2, config.strata, 2))
    place = (np.arange(len(weight)), hedge.astype(int), stratum)
    parts[(*place, 0)], parts[(*place, 1)] = 1.0, weight
    sums = cluster_sums(parts, cluster.astype(np.int64), clusters=int(cluster.max()) + 1)

    def statistic(totals: np.ndarray) -> np.ndarray:
        count, total = totals[..., 0], totals[..., 1]
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = np.nan_to_num(total / count)
            # A resample may hold no hedge, or no because, of some quarter: then of the others.
            share = np.where((count > 0).all(1), count[:, 1], 0.0)
            matched = (share * mean[:, 0]).sum(-1) / (share * mean[:, 1]).sum(-1)
            raw = total.sum(-1) / count.sum(-1)
        return np.stack([matched, raw[:, 0] / raw[:, 1]], axis=1)

    plan = Resampling(len(sums), config.resamples, config.seed)
    with_hedge = sums[:, 1, :, 0].sum(-1) > 0
    return intervals(
        resample(sums, statistic, plan=plan, present=np.stack([with_hedge, with_hedge], axis=1))
    )


def table(words: Words, config: Config) -> Iterator[dict[str, object]]:
    """A line a rule, the largest ratio first."""
    lines = []
    for name, weight in zip(words.rules, words.weight, strict=True):
        found, known = ratios(words, weight, config), np.isfinite(weight)
        line: dict[str, object] = {"rule": name, "grade": CATALOGUE[name].grade}
        for place, what in enumerate(("ratio", "raw")):
            line[what] = f"{found.estimate[place]:.4g}"
            line |= {
                f"{what}_{end}": f"{getattr(found, end)[place]:.4g}" for end in ("low", "high")
            }
        line |= {"because": int((known & ~words.hedge).sum())}
        line |= {"hedges": int((known & words.hedge).sum())}
        line |= {"problems_with_hedges": len(set(words.cluster[known & words.hedge].tolist()))}
        lines.append(line)
    yield from sorted(lines, key=lambda line: -float(str(line["ratio"])))


def main(config: Config, *, out: Path, stores: Sequence[Path] = ()) -> None:
    """One table of all stores.

    Raises:
        InputError: no store is named.
    """
    if not stores:
        raise InputError("word_weights needs probed stores; none came. Name one or more.")
    out.mkdir(parents=True, exist_ok=True)
    rows = list(table(joined([weights_in(store) for store in stores]), config))
    written(out / "weights.csv", rows)
    for row in rows:
        print("  ".join(f"{value!s:>10}" for value in row.values()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("stores", nargs="+", type=Path, help="probed with opposed and placebo")
    parser.add_argument("--out", type=Path, default=Path("runs/word_weights"))
    given = parser.parse_args()
    try:
        main(Config(), out=given.out, stores=given.stores)
    except TokensenseError as error:
        sys.exit(f"word_weights: {error}")
