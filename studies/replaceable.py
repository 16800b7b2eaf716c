"""Are attenuated tokens replaceable, and is what is replaceable useless? A 2 x 2 left open.

    python -m studies.replaceable --policy tiny:mixed --out runs/replaceable

CSCR takes credit from tokens that move under verdicts and calls them replaceable. Here every token
of sampled responses that could have been another (a token of probability above .05 beside it) is
replaced by each such alternative, and the policy goes on from there, K times each:

    replaceable  the answers after the token itself and after its alternatives have the same
                 distribution: total variation less than .1 above what shuffled labels give
    useful       values of the alternatives differ by .2 or more; which is best and which is worst
                 is chosen in one half of the continuations and measured in the other, so that
                 noise alone gives 0 on average

Tokens without an alternative are `forced` and neither. Attenuated: CSCR's weight before
normalization is below 1 (sensitivity above .05 nats). `kept` beside them are other tokens of the
same response, nearest in surprisal. Decides rows 9 and 10 of the claims by their criteria.

Writes tokens.csv (a line a token), table.csv (shares with 95 % intervals, cluster bootstrap over
problems). Responses are the policy's own: on-policy. Minutes of one core.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

import tokensense as ts
from tokensense.models.distribution import top_log_probs
from tokensense.models.head import head_of
from tokensense.models.plan import Branch
from tokensense.models.policy import Policy
from tokensense.models.scorer import read_rows
from tokensense.probes.contexts import Problems, read_problems
from tokensense.probes.resample import Start, Trials, require_estimable, resample
from tokensense.schema import Kind
from tokensense.stats.catalogue import ratio
from tokensense.stats.resampling import Resampling, cluster_sums, intervals
from tokensense.stats.resampling import resample as draws_of
from tokensense.tasks.planted import PLANTED

THRESHOLD = 0.05  # CSCR's lambda, nats
SHUFFLES = 50


@dataclass(frozen=True)
class Config:
    """What was fixed before the first run.

    Attributes:
        problems: one response each.
        trials: continuations after each alternative; even.
        least: probability that makes a token an alternative.
        margin: of total variation, above chance, below which a token is replaceable.
        useful: difference of values from which on a token is useful.
        frames: of the verdict probe.
        resamples: of the bootstrap.
        seed: of everything random.
    """

    problems: int = 40
    trials: int = 32
    least: float = 0.05
    margin: float = 0.1
    useful: float = 0.2
    frames: int = 3
    resamples: int = 10_000
    seed: int = 0


TINY = Config(problems=10, trials=4, frames=1, resamples=500)


def alternatives(policy: Policy, branches: Sequence[Branch], config: Config) -> list[list[int]]:
    """For each response token the ids of probability above `least`, the token itself with them."""
    head, most = head_of(policy.model), int(1 / config.least)
    found: dict[int, list[int]] = {}

    def read(hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        top = top_log_probs(hidden, head, top=most)
        likely = torch.where(top.logp.exp() > config.least, top.ids, -1)
        return torch.cat([targets[:, None], likely], 1)

    for slots, ids in read_rows(policy, branches, read):
        for slot, row in zip(slots.tolist(), ids.tolist(), strict=True):
            found[slot] = list(dict.fromkeys(i for i in row if i >= 0))
    return [found[slot] for slot in range(len(found))]


def variation(first: Sequence[str], second: Sequence[str]) -> float:
    """Total variation distance of two samples of answers, 0 to 1."""
    a, b = Counter(first), Counter(second)
    return 0.5 * sum(abs(a[x] / len(first) - b[x] / len(second)) for x in {*a, *b})


def excess_variation(
    first: Sequence[str], second: Sequence[str], generator: np.random.Generator
) -> float:
    """Total variation minus its mean under shuffled labels; 0 on average if they are equal."""
    together = np.array([*first, *second])
    shuffled = [generator.permutation(together) for _ in range(SHUFFLES)]
    chance = np.mean([variation(s[: len(first)], s[len(first) :]) for s in shuffled])
    return variation(first, second) - float(chance)


def spread(halves: np.ndarray) -> float:
    """Best minus worst value, chosen in one half and measured in the other, both ways averaged.

    Args:
        halves: (half, alternative) values.
    """
    found = [
        other[np.argmax(half)] - other[np.argmin(half)] for half, other in (halves, halves[::-1])
    ]
    return float(np.mean(found))


def measured(
    policy: Policy, problems: Problems, tokens: pd.DataFrame, config: Config
) -> pd.DataFrame:
    """Per token: alternatives, excess variation, spread of values.

    Args:
        policy: goes on.
        problems: of the store.
        tokens: in the order of the store.
        config: of the study.
    """
    task = PLANTED["arithmetic"]
    question = _question_of(problems)
    branches = [
        Branch(problems.bases[p], problems.responses[i])
        for p, (a, b) in enumerate(problems.groups)
        for i in range(a, b)
    ]
    options = alternatives(policy, branches, config)
    starts, owner = [], []
    for slot, (rollout, place) in enumerate(zip(tokens["rollout"], tokens["place"], strict=True)):
        if len(options[slot]) > 1:
            context, response = branches[rollout]
            for token in options[slot]:
                kept = (*response[:place], token)
                starts.append(Start(context, kept, (place + 1,)))
                owner.append(slot)
    answers: list[list[str]] = [[] for _ in starts]

    def judge(start: int, ids: tuple[int, ...]) -> bool:
        words = [policy.token_bytes(i).decode("utf-8", "replace").strip() for i in ids]
        truth = task.label(question[tokens["rollout"][owner[start]]], words)
        kinds = zip(words, truth.kinds, strict=True)
        answers[start].append(" ".join(word for word, kind in kinds if kind == Kind.FINAL_ANSWER))
        return truth.right

    with tqdm(total=config.trials * len(starts), unit="continuation", unit_scale=True) as bar:
        found = resample(
            policy,
            starts,
            judge,
            ends={policy.tokenizer.eos_token_id},
            plan=Trials(
                max_new_tokens=int(tokens.groupby("rollout").size().max()),
                first=config.trials,
                most=config.trials,
                seed=config.seed,
            ),
            progress=bar.update,
        )
    generator = np.random.default_rng(config.seed)
    rows: list[dict[str, Any]] = [{"alternatives": len(some)} for some in options]
    owners, halves = np.array(owner), found["half"].values
    for slot in dict.fromkeys(owner):
        own, *others = np.flatnonzero(owners == slot)
        pooled = [answer for other in others for answer in answers[other]]
        rows[slot] |= {
            "excess_variation": excess_variation(answers[own], pooled, generator),
            "spread": spread(halves[:, [own, *others]]),
        }
    table = pd.concat([tokens, pd.DataFrame(rows)], axis=1)
    table["forced"] = table["alternatives"] == 1
    table["replaceable"] = ~table["forced"] & (table["excess_variation"] < config.margin)
    table["useful"] = ~table["forced"] & (table["spread"] >= config.useful)
    return table


def _question_of(problems: Problems) -> dict[int, str]:
    return {
        rollout: problems.questions[p]
        for p, (a, b) in enumerate(problems.groups)
        for rollout in range(a, b)
    }


def matched(tokens: pd.DataFrame) -> pd.Series:
    """Marks kept tokens: for each attenuated one the nearest in surprisal of its response."""
    chosen = pd.Series(data=False, index=tokens.index)
    for _, one in tokens[~tokens["forced"]].groupby("rollout"):
        free = one[~one["attenuated"]]["surprisal"]
        for value in one[one["attenuated"]]["surprisal"].sort_values(ascending=False):
            if free.empty:
                break
            nearest = (free - value).abs().idxmin()
            chosen[nearest] = True
            free = free.drop(nearest)
    return chosen


def table_of(tokens: pd.DataFrame, config: Config) -> pd.DataFrame:
    """Shares of each cell for attenuated and kept tokens, and the measures of rows 9 and 10."""
    cluster = tokens["rollout"].to_numpy()
    clusters = int(cluster.max()) + 1
    plan = Resampling(clusters, config.resamples, config.seed)
    groups = {
        "attenuated": tokens["attenuated"] & ~tokens["forced"],
        "kept, matched": tokens["matched"],
        "all that could be another": ~tokens["forced"],
    }
    rows = []
    for group, chosen in groups.items():
        for replaceable in (True, False):
            for useful in (True, False):
                cell = (tokens["replaceable"] == replaceable) & (tokens["useful"] == useful)
                name = (
                    f"{'' if replaceable else 'not '}replaceable, {'' if useful else 'not '}useful"
                )
                numbers = np.stack([(cell & chosen).to_numpy(float), chosen.to_numpy(float)], 1)
                rows.append(
                    {"group": group, "measure": name} | _row(numbers, cluster, plan, _ratio)
                )
    lost = tokens["lost"].to_numpy(float)
    useful, ones = tokens["useful"].to_numpy(float), np.ones(len(tokens))
    numbers = np.stack([lost * useful, lost, useful, ones], 1)
    rows.append(
        {"group": "row 10", "measure": "useful share of attenuated mass / of tokens"}
        | _row(numbers, cluster, plan, _enrichment)
    )
    rows.append({"group": "row 9", "measure": "AUROC of s - of entropy"} | _auroc_row(tokens, plan))
    return pd.DataFrame(rows)


def _row(
    numbers: np.ndarray,
    cluster: np.ndarray,
    plan: Resampling,
    statistic: Callable[[np.ndarray], np.ndarray],
) -> dict[str, Any]:
    """Estimate, interval and counts of a function of sums."""
    sums = cluster_sums(numbers, cluster, clusters=plan.clusters)
    found = intervals(draws_of(sums, statistic, plan=plan, present=sums[:, 1:2] > 0))
    return {
        "estimate": found.estimate[0],
        "low": found.low[0],
        "high": found.high[0],
        "problems": int((sums[:, 1] > 0).sum()),
        "tokens": int((numbers[:, 1] > 0).sum()),
    }


def _ratio(totals: np.ndarray) -> np.ndarray:
    return ratio(totals[:, 0], totals[:, 1])[:, None]


def _enrichment(totals: np.ndarray) -> np.ndarray:
    share = ratio(totals[:, 0], totals[:, 1])
    return ratio(share, ratio(totals[:, 2], totals[:, 3]))[:, None]


def _auroc_row(tokens: pd.DataFrame, plan: Resampling) -> dict[str, Any]:
    """AUROC for `replaceable` among tokens that could be another, s minus entropy.

    Within responses, summed over pairs: so that a resample of problems is a weighted sum.
    """
    free = tokens[~tokens["forced"]]
    sums = np.zeros((plan.clusters, 3))
    for rollout, one in free.groupby("rollout"):
        yes, no = one[one["replaceable"]], one[~one["replaceable"]]
        for place, name in enumerate(("sensitivity", "entropy")):
            a, b = yes[name].to_numpy()[:, None], no[name].to_numpy()[None]
            sums[rollout, place] = (a > b).sum() + 0.5 * (a == b).sum()
        sums[rollout, 2] = len(yes) * len(no)
    found = intervals(
        draws_of(
            sums,
            lambda t: ratio(t[:, 0] - t[:, 1], t[:, 2])[:, None],
            plan=plan,
            present=sums[:, 2:] > 0,
        )
    )
    limits = {"estimate": found.estimate[0], "low": found.low[0], "high": found.high[0]}
    return {**limits, "problems": int((sums[:, 2] > 0).sum()), "tokens": len(free)}


def flat_tokens(study: ts.Study) -> pd.DataFrame:
    """A line a token: place, surprisal, entropy, sensitivity, what CSCR takes from it."""
    tokens = study.tokens()
    verdict = tokens["shift"][(tokens["family"] == "verdict").values]
    sides = [
        verdict[(verdict["level"] == level).values].mean("condition") for level in ("pos", "neg")
    ]
    base = tokens.sel(condition="base")
    table = pd.DataFrame(
        {
            "rollout": tokens["rollout"].values,
            "kind": tokens["kind"].values,
            "text": tokens["text"].values,
            "surprisal": -base["logp"].values,
            "entropy": base["entropy"].values,
            "sensitivity": np.maximum(*(np.abs(side.values) for side in sides)),
        }
    )
    table["place"] = table.groupby("rollout").cumcount()
    over = np.maximum(table["sensitivity"] - THRESHOLD, 0)
    table["lost"] = 1 - np.exp(-over)  # of CSCR's weight, in units of gamma
    table["attenuated"] = over > 0
    return table


def main(config: Config, *, out: Path, policy_name: str = "tiny:mixed") -> pd.DataFrame:
    """Sample, probe, replace, judge; print and write the tables."""
    policy = ts.load_policy(policy_name)
    study = ts.Study(out / "store.zarr")
    study.generate(policy, config.problems, task="arithmetic", seed=config.seed)
    study.probe(policy, ("opposed",), frames=config.frames)
    rollouts = study.archive().rollouts()
    accuracy = float(np.mean(rollouts["reward"].values))
    require_estimable(accuracy)
    tokens = measured(policy, read_problems(rollouts, policy), flat_tokens(study), config)
    tokens["matched"] = matched(tokens)
    table = table_of(tokens, config)
    tokens.to_csv(out / "tokens.csv", index=False)
    table.to_csv(out / "table.csv", index=False)
    print(f"{policy_name}, right {accuracy:.1%} of {config.problems}; {config.trials} trials")
    print(f"forced: {tokens['forced'].mean():.1%} of {len(tokens)} tokens")
    print(table.to_string(index=False, float_format=lambda value: f"{value:.3f}"))
    return table


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--policy", default="tiny:mixed")
    parser.add_argument("--out", type=Path, default=Path("runs/replaceable"))
    parser.add_argument("--tiny", action="store_true", help="10 problems, 4 trials: seconds")
    given = parser.parse_args()
    main(TINY if given.tiny else Config(), policy_name=given.policy, out=given.out)
