"""Do opposed verdicts give overlapping signals over the whole vocabulary, and placebos as well?

    python -m studies.vocabulary_overlap STORE --out runs/vocabulary_overlap

STORE holds rollouts (of `first_shifts`, `own_samples`, ...). For a sample of them the change of the
next-token distribution under "correct" is compared with that under "wrong" (cosine; share of moved
probability that both move the same way), and the same for irrelevant word pairs in the same
sentences. Mean over tokens, each problem text by its tokens; 95 % cluster bootstrap over problem
texts. Row 6 of the claims: cosine of the verdict >= .8 supports, <= .6 refutes; the difference to
placebos is printed beside it.

Cost: 1 + 2 (1 + families) frames forward passes over the response tokens, and six times the head.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr
from tqdm import tqdm

import tokensense as ts
from studies.first_shifts import smollm2
from tokensense.probes import CATALOGUE
from tokensense.probes.contexts import read_problems
from tokensense.probes.overlap import overlaps
from tokensense.schema import VERDICT
from tokensense.stats.catalogue import ratio
from tokensense.stats.resampling import (
    REASONS,
    Method,
    Resampling,
    cluster_sums,
    intervals,
    resample,
)

TERMS = ("verdict", "placebo", "difference")


@dataclass(frozen=True)
class Config:
    """What was fixed before the first run: rollouts sampled, conditions, resamples, seed."""

    rollouts: int = 60
    frames: int = 2
    families: int = 3
    resamples: int = 10_000
    seed: int = 0


TINY = Config(rollouts=9, frames=1, families=3, resamples=500)


def summary(
    found: xr.Dataset, is_verdict: np.ndarray, cluster: np.ndarray, config: Config
) -> pd.DataFrame:
    """Verdict, placebo and difference of both measures.

    Args:
        found: see `probes.overlap.overlaps`.
        is_verdict: (pair) whether a pair is the verdict's; the others are placebos.
        cluster: (token) number of the token's problem text.
        config: of the study.
    """
    rows = []
    clusters = int(cluster.max()) + 1
    plan = Resampling(clusters, config.resamples, config.seed)
    for name in ("cosine", "shared"):
        values = found[name].values.astype(np.float64)
        whole = np.isfinite(values).all(0)
        sides = [values[chosen][:, whole].mean(0) for chosen in (is_verdict, ~is_verdict)]
        items = np.stack([*sides, np.ones(whole.sum())], 1)
        sums = cluster_sums(items, cluster[whole], clusters=clusters)
        present = np.repeat(sums[:, 2:] > 0, 3, axis=1)
        draws = resample(sums, _triple, plan=plan, present=present)
        estimates = intervals(draws)
        for place, term in enumerate(TERMS):
            rows.append(
                {
                    "measure": name,
                    "term": term,
                    "estimate": estimates.estimate[place],
                    "low": estimates.low[place],
                    "high": estimates.high[place],
                    "method": REASONS[Method(int(estimates.method[place]))],
                    "texts": clusters,
                    "tokens": int(whole.sum()),
                    "left_out": int((~whole).sum()),
                }
            )
    return pd.DataFrame(rows)


def _triple(totals: np.ndarray) -> np.ndarray:
    """Means of verdict and placebo, and their difference."""
    verdict, placebo = (ratio(totals[:, place], totals[:, 2]) for place in (0, 1))
    return np.stack([verdict, placebo, verdict - placebo], 1)


def main(config: Config, *, store: Path, out: Path, model: str | None = None) -> pd.DataFrame:
    """Sample rollouts, compare, print and write the table."""
    policy = ts.load_policy(model or str(smollm2()))
    rollouts = ts.Study(store, mode="r").archive().rollouts()
    problems = read_problems(rollouts, policy)
    drawn = np.random.default_rng(config.seed).permutation(len(problems.responses))
    chosen = sorted(drawn[: config.rollouts].tolist())
    sizes = {"frames": config.frames, "families": config.families}
    conditions = [c for probe in ("opposed", "placebo") for c in CATALOGUE[probe](policy, **sizes)]
    pairs = list(zip(conditions[::2], conditions[1::2], strict=True))
    tokens = sum(len(problems.responses[i]) for i in chosen)
    with tqdm(total=3 * tokens * len(pairs), unit="tok", unit_scale=True) as bar:
        found = overlaps(policy, problems, pairs, rollouts=chosen, progress=bar.update)
    owner = rollouts["problem_of"].values[found["rollout"].values]
    _, cluster = np.unique(rollouts["cluster"].values[owner], return_inverse=True)
    is_verdict = np.array([pos.family == VERDICT for pos, _ in pairs])
    table = summary(found, is_verdict, cluster, config)
    out.mkdir(parents=True, exist_ok=True)
    table.to_csv(out / "vocabulary_overlap.csv", index=False)
    print(table.to_string(index=False, float_format=lambda value: f"{value:.4f}"))
    return table


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("--model", help="the policy that encoded the store; SmolLM2 by default")
    parser.add_argument("--out", type=Path, default=Path("runs/vocabulary_overlap"))
    parser.add_argument("--tiny", action="store_true", help="9 rollouts, one sentence")
    given = parser.parse_args()
    main(
        TINY if given.tiny else Config(),
        store=given.store,
        model=given.model,
        out=given.out,
    )
