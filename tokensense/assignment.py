"""Credit of every stored token under named rules: evidence from the probes, weights to the store.

Reads  the flat view of a study, nodes `/rollouts` and `/probes/<name>`.
Gives  assign_credit, which keeps `/credit/<rule>` in the store; credit_of, which does not.
Sign   credit has the unit of the advantage; positive: the update would make the token likelier.

What the rules read is laid out by `gathering`. A rollout whose reward is undecided, or that may not
be compared under a condition that a rule reads, gets credit NaN under that rule, never 0, and is
counted.
"""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float64

from tokensense.checks import require_member
from tokensense.credit import CATALOGUE
from tokensense.credit.advantages import ADVANTAGES, DDOF, EPS
from tokensense.credit.base import BUDGETS, Credit, settings_of, weights_of
from tokensense.credit.evidence import PER_ROLLOUT, SUPPLIERS, Evidence
from tokensense.credit.report import (
    CREDIT_NUMBERS,
    WEIGHT_NUMBERS,
    credit_numbers,
    mass_by_kind,
    rank_correlations,
    twins,
    weight_numbers,
)
from tokensense.errors import StatisticsError
from tokensense.gathering import Gathered, gather
from tokensense.segments import broadcast
from tokensense.stats.sample import read_sample
from tokensense.store.archive import Archive
from tokensense.store.inventory import names_in

if TYPE_CHECKING:
    from tokensense.study import Study

DEFAULT_RULES = ("uniform", "cscr")
CREDIT = {
    "units": "advantage",
    "description": "credit of the token; positive: the update would make it likelier",
}
WEIGHT = {
    "units": "1",
    "description": "credit = weight x advantage; NaN: not a weight, or left out",
}
ADVANTAGE = {"units": "advantage", "description": "of its rollout; positive: better than its group"}
LEFT_OUT = {
    "undecided": "rollouts left out because their reward is not decided",
    "not_comparable": "rollouts left out because what the rule reads may not be compared with base",
}
SURPRISAL = {"units": "nats", "description": "-log p under base"}
ENTROPY = {"units": "nats", "description": "of the next-token distribution under base"}


def assign_credit(
    study: "Study",
    rules: Sequence[str] | Mapping[str, Credit] = DEFAULT_RULES,
    *,
    advantage: str | None = None,
) -> xr.Dataset:
    """Credit of every token under each rule; each is kept in the store as `/credit/<rule>`.

    Args:
        study: with the probes that the rules need.
        rules: names from `tokensense.credit.CATALOGUE`, or rules by the name they are stored under,
            as `{"half": adjusted(CATALOGUE["cscr"], gamma=0.5)}`.
        advantage: `group_std`, `group_mean`, `leave_one_out` or `pooled`; None: `group_std`, and
            `pooled` where every problem has one rollout.

    Returns:
        As `credit_of`.

    Raises:
        SchemaError: an unknown rule or advantage.
        StatisticsError: evidence is missing, and which probe supplies it; or no reward is decided.
        StoreError: there is no store or no finished base probe, or the store cannot be written.
    """
    archive = study.archive()
    tokens = _with_values(study.tokens(), archive)
    credit = credit_of(tokens, archive.rollouts(), rules=rules, advantage=advantage)
    with archive:
        names = credit["rule"].values.tolist()
        archive.write_nodes({f"/credit/{name}": _node(credit, name) for name in names})
    return credit


def _with_values(tokens: xr.Dataset, archive: Archive) -> xr.Dataset:
    """Learning values, where they were measured on all rollouts that the store has now."""
    if "learning_value" not in names_in(archive, "stats"):
        return tokens
    kept = archive.read("/stats/learning_value")["learning_value"].values
    return tokens.assign(learning_value=("token", kept))


def credit_of(
    tokens: xr.Dataset,
    rollouts: xr.Dataset,
    *,
    rules: Sequence[str] | Mapping[str, Credit] = DEFAULT_RULES,
    advantage: str | None = None,
) -> xr.Dataset:
    """Credit of every token under each rule.

    Args:
        tokens: of `Study.tokens()`.
        rollouts: the node `/rollouts`.
        rules: as in `assign_credit`.
        advantage: as in `assign_credit`.

    Returns:
        `credit` and `weight` (rule, token), NaN where a rollout was left out, and `weight` where
        the rule does not multiply; `advantage`, `surprisal` and `entropy` (token); `length`
        (rollout); the numbers of `credit.report.WEIGHT_NUMBERS` and `CREDIT_NUMBERS`, and counts of
        rollouts left out by reason (rule).
        Coordinates of a token as in `Study.tokens()`; of a rule: form, budget, source, grade,
        settings, evidence. Attributes: which advantage, `pooled`, groups without contrast.

    Raises:
        SchemaError: an unknown rule or advantage.
        StatisticsError: evidence is missing, and which probe supplies it; or no reward is decided.
    """
    chosen = _chosen(rules)
    reward = rollouts["reward"].values.astype(np.float64)
    group = rollouts["problem_of"].values
    values, said = _advantages(reward, group, advantage)
    needed = frozenset().union(*(rule.needs for rule in chosen.values()))
    gathered = gather(tokens, read_sample(tokens), rollouts=rollouts, needed=needed)
    gathered.arrays["advantage"] = values
    assigned = {name: _assigned(rule, gathered) for name, rule in chosen.items()}
    return _dataset(assigned, chosen, gathered, tokens=tokens, attrs=said)


def compare_rules(credit: xr.Dataset) -> xr.Dataset:
    """Which rules choose the same tokens, or only those that a simple score would choose.

    Args:
        credit: of `credit_of`.

    Returns:
        `correlation` (score, other): of ranks within rollouts, over tokens that every rule has
        credit for, of credit along the advantage's sign; scores are the rules, surprisal, entropy
        and position. `mass` (rule, kind) and `tokens` (kind): shares. Attribute `twins`: pairs of
        scores above .95, as JSON.
    """
    names, owner = credit["rule"].values.tolist(), credit["rollout"].values
    along = credit["credit"].values * np.sign(credit["advantage"].values)
    kept = np.isfinite(along).all(axis=0)
    length = np.unique(owner[kept], return_counts=True)[1].astype(np.int64)
    scores = dict(zip(names, along[:, kept], strict=True))
    scores |= {name: credit[name].values[kept] for name in ("surprisal", "entropy")}
    scores["position"] = np.arange(length.sum()) - broadcast(np.cumsum(length) - length, length)
    scores = {name: score.astype(np.float64) for name, score in scores.items()}
    matrix = rank_correlations(scores, length)
    kinds = [mass_by_kind(row[kept], credit["kind"].values[kept]) for row in along]
    columns = list(kinds[0])
    mass = [[found[kind]["credit"] for kind in columns] for found in kinds]
    return xr.Dataset(
        {
            "correlation": (("score", "other"), matrix, {"units": "1"}),
            "mass": (("rule", "kind"), np.array(mass).reshape(len(names), -1), {"units": "1"}),
            "tokens": ("kind", [kinds[0][kind]["tokens"] for kind in columns], {"units": "1"}),
        },
        coords={"score": list(scores), "other": list(scores), "rule": names, "kind": columns},
        attrs={"twins": json.dumps(twins(list(scores), matrix))},
    )


def _chosen(rules: Sequence[str] | Mapping[str, Credit]) -> dict[str, Credit]:
    if isinstance(rules, Mapping):
        return dict(rules)
    for name in rules:
        require_member("rule", name, CATALOGUE)
    return {name: CATALOGUE[name] for name in rules}


def _advantages(
    reward: Float64[np.ndarray, " rollout"],
    group: np.ndarray,
    advantage: str | None,
) -> tuple[Float64[np.ndarray, " rollout"], dict[str, Any]]:
    """Advantage of each rollout, NaN where it is undecided, and what has to be said about it."""
    decided = np.isfinite(reward)
    if not decided.any():
        raise StatisticsError(
            f"credit needs rewards; none of {reward.size} rollouts is decided. Import traces with "
            "rewards, or check their answers."
        )
    sizes = np.unique(group[decided], return_counts=True)[1]
    if advantage is None:
        advantage = "pooled" if sizes.max() == 1 else "group_std"
    require_member("advantage", advantage, ADVANTAGES)
    values = np.full(reward.shape, np.nan)
    values[decided] = ADVANTAGES[advantage](reward[decided], group[decided])
    active = np.unique(group[decided & (np.abs(values) > 0)]).size
    said: dict[str, Any] = {
        "advantage": advantage,
        "pooled": advantage == "pooled",
        "groups": int(sizes.size),
        "groups_without_contrast": int(sizes.size) - active,
    }
    return values, said | ({"eps": EPS, "ddof": DDOF} if advantage == "group_std" else {})


def _assigned(rule: Credit, gathered: Gathered) -> dict[str, Any]:
    """Credit and weight of every token, NaN where its rollout is left out, and the counts."""
    arrays = gathered.arrays
    unknown = sorted(rule.needs - arrays.keys())
    if unknown:
        raise StatisticsError(
            f"a rule needs the evidence {unknown}; this store has {sorted(arrays)}. To get it: "
            f"{'; '.join(SUPPLIERS[name].text for name in unknown if name in SUPPLIERS)}."
        )
    decided = np.isfinite(arrays["advantage"])
    comparable = np.logical_and.reduce(
        [np.ones_like(decided), *(gathered.usable[n] for n in rule.needs & gathered.usable.keys())]
    )
    kept = decided & comparable
    own = broadcast(kept, arrays["length"])
    evidence = Evidence(
        **{
            name: arrays[name][kept if name in PER_ROLLOUT else own]
            for name in ("length", "advantage", *rule.needs)
        }
    )
    weights, credit = weights_of(rule, evidence), rule.assign(evidence)
    found: dict[str, Any] = {
        "credit": _with_gaps(credit, own),
        "weight": _with_gaps(weights, own),
        "undecided": int((~decided).sum()),
        "not_comparable": int((decided & ~comparable).sum()),
    }
    surprisal, distance = -arrays["logp"][own], arrays["distance"][own]
    of_credit = credit_numbers(
        credit, evidence.spread(), distance, length=np.asarray(evidence.length)
    )
    return found | weight_numbers(weights, surprisal, evidence.length) | of_credit


def _with_gaps(
    values: Float64[np.ndarray, " kept"] | None, own: Bool[np.ndarray, " token"]
) -> Float64[np.ndarray, " token"]:
    filled = np.full(own.size, np.nan)
    if values is not None:
        filled[own] = values
    return filled


def _dataset(
    assigned: Mapping[str, Mapping[str, Any]],
    chosen: Mapping[str, Credit],
    gathered: Gathered,
    *,
    tokens: xr.Dataset,
    attrs: Mapping[str, Any],
) -> xr.Dataset:
    """Put the rules side by side, with what was said of each."""
    arrays = gathered.arrays

    def stacked(name: str) -> np.ndarray:
        return np.stack([found[name] for found in assigned.values()])

    variables: dict[str, Any] = {
        "credit": (("rule", "token"), stacked("credit"), CREDIT),
        "weight": (("rule", "token"), stacked("weight"), WEIGHT),
        "advantage": ("token", broadcast(arrays["advantage"], arrays["length"]), ADVANTAGE),
        "surprisal": ("token", -arrays["logp"], SURPRISAL),
        "entropy": ("token", arrays["entropy"], ENTROPY),
        "length": ("rollout", arrays["length"], {"units": "tokens", "sample_dimension": "token"}),
        **{
            name: ("rule", stacked(name), {"units": "1", "description": meaning})
            for name, meaning in (WEIGHT_NUMBERS | CREDIT_NUMBERS | LEFT_OUT).items()
        },
    }
    facts = {
        "form": [rule.form for rule in chosen.values()],
        "budget": [rule.budget for rule in chosen.values()],
        "source": [rule.source for rule in chosen.values()],
        "grade": [rule.grade for rule in chosen.values()],
        "settings": [json.dumps(settings_of(rule), sort_keys=True) for rule in chosen.values()],
        "evidence": [
            json.dumps(
                {name: gathered.said.get(name, SUPPLIERS[name].text) for name in sorted(rule.needs)}
            )
            for rule in chosen.values()
        ],
    }
    coords = {
        "rule": list(chosen),
        **{name: ("rule", values) for name, values in facts.items()},
        **{str(n): array for n, array in tokens.coords.items() if array.dims == ("token",)},
    }
    kept = {name: tokens.attrs[name] for name in ("sampled_by", "scored_by", "off_policy")}
    return xr.Dataset(variables, coords=coords).assign_attrs({**kept, **attrs})


def _node(credit: xr.Dataset, name: str) -> xr.Dataset:
    """What the store keeps of one rule: coordinates of a token are in `/rollouts` already."""
    one = credit.sel(rule=name)
    facts = {str(n): array.item() for n, array in one.coords.items() if array.dims == ()}
    facts["budget_meaning"] = BUDGETS[facts["budget"]]
    kept = one[
        ["credit", "weight", "advantage", *WEIGHT_NUMBERS, *CREDIT_NUMBERS, *LEFT_OUT]
    ].reset_coords(drop=True)
    return kept.assign_attrs({**credit.attrs, **facts})
