"""All credit rules over the same rollouts: what each does to a batch, and which ones do the same.

    OMP_NUM_THREADS=1 python -m studies.all_rules --part truthful --out data/all_rules
    python -m studies.all_rules --part gsm8k --store gsm8k.zarr --model smollm2.gguf --traces FILE

Tiny parts (truthful, style, mixed): 125 problems x 8 responses of the policy itself. `gsm8k`: a
store of imported solutions with whatever probes it has; a rule whose evidence is not there says
what is missing. `--other`, another checkpoint of the model, is teacher and reference policy to the
rules that need one. Texts that the store's probes did not tell, continuations, masked spans and
tokens, gradients of a model of language are gathered for the first few problems only (`rollouts`
says for how many responses), and their cost is extrapolated.

    rules_<part>.csv         a rule a line: numbers of its weights and credit; mass by kind; AUROC
                             of the first wrong token (wrong responses of groups with contrast, by
                             credit along the advantage: above .5 it is blamed more), raw and at
                             equal surprisal; gain in learning value over uniform at equal length of
                             update; seconds and passes. Intervals are 95 %, over problems.
    correlations_<part>.csv  of ranks within responses, with surprisal, entropy and position too
    twins_<part>.csv         every pair above .95

Passes are those of `SUPPLIERS` (`passes_stated`) and the processor time of gathering over that of a
pass over as many tokens (`passes_measured`), so that a gradient counts by its time; empty where
the store had it. A rule's `seconds` are without its evidence. Arrays that are there are not
gathered again: a run that is stopped goes on.
"""

import argparse
import math
import sys
from collections.abc import Iterator
from itertools import combinations_with_replacement
from pathlib import Path
from typing import NamedTuple

import numpy as np

import tokensense as ts
from studies.all_parts import GSM8K, TEACHERS, TINY, Config, Part, read_part, supplied, tiny_study
from studies.rows import written
from tokensense.credit import CATALOGUE
from tokensense.credit.base import Credit, weights_of
from tokensense.credit.evidence import PER_ROLLOUT, Evidence
from tokensense.credit.report import (
    credit_numbers,
    extra_passes,
    mass_by_kind,
    overhead,
    rank_correlations,
    shown_name,
    twins,
    weight_numbers,
)
from tokensense.errors import TokensenseError
from tokensense.importing.labelled import read_gsm8k_solutions
from tokensense.models.policy import load_policy
from tokensense.segments import broadcast, segment_sum
from tokensense.stats.localization import knows_wrong_tokens, localization
from tokensense.stats.resampling import Resampling, cluster_sums, intervals, resample

PLAIN = ("surprisal", "entropy", "position")
LOCATED = ("auroc", "auroc_at_equal_surprisal")


def usable(part: Part, rule: Credit) -> np.ndarray:
    """Rollouts for which a rule has all that it reads."""
    kept = np.isfinite(part.evidence["advantage"])
    for name in rule.needs:
        values = part.evidence[name]
        if values.dtype.kind != "f" or name in PER_ROLLOUT:
            continue
        whole = np.isfinite(values.reshape(len(values), -1)).all(axis=1)
        bad = segment_sum((~whole).astype(np.int64), part.evidence["length"])
        kept &= bad == 0
    return kept


def evidence_of(part: Part, rule: Credit, kept: np.ndarray) -> Evidence:
    """What a rule reads, of the rollouts that it can be asked about."""
    inside = broadcast(kept, part.evidence["length"])
    return Evidence(
        **{
            name: part.evidence[name][kept if name in PER_ROLLOUT else inside]
            for name in ("length", "advantage", *rule.needs)
        }
    )


class Dealt(NamedTuple):
    """A rule's credit.

    along: (token) of all tokens, times the sign of the advantage; NaN where it was not asked.
    kept: (rollout) about which it was asked. line: what is said of it.
    """

    along: np.ndarray
    kept: np.ndarray
    line: dict[str, object]


def dealt(part: Part, name: str, rule: Credit, *, config: Config) -> Dealt | str:
    """Credit of a rule and its numbers, or why there is none."""
    lacking = [each for each in sorted(rule.needs) if each not in part.evidence]
    if lacking:
        return "; ".join(f"{each}: {part.missing.get(each, 'not supplied')}" for each in lacking)
    kept = usable(part, rule)
    told = evidence_of(part, rule, kept)
    if not np.any(told.advantage):
        return "no response with an advantage has all that the rule reads"
    credit, weights = np.asarray(rule.assign(told)), weights_of(rule, told)
    inside = broadcast(kept, part.evidence["length"])
    arrays = {each: part.evidence[each][inside] for each in ("logp", "distance")}
    kind = part.setting.arrays["kind"][inside]
    numbers = weight_numbers(weights, -arrays["logp"], told.length) | credit_numbers(
        credit, told.spread(), arrays["distance"], length=told.length
    )
    line: dict[str, object] = {"rollouts": int(kept.sum()), **numbers}
    line |= {f"mass_{k}": share["credit"] for k, share in mass_by_kind(credit, kind).items()}
    line["seconds"] = overhead(rule, told, repeats=1)
    line |= learning_gain(part, credit, kept=kept, config=config)
    along = np.full(inside.size, np.nan)
    along[inside] = credit * np.sign(told.spread())
    return Dealt(along, kept, line)


def learning_gain(
    part: Part, credit: np.ndarray, *, kept: np.ndarray, config: Config
) -> dict[str, float]:
    """Learning value at equal length of the update, in units of uniform credit's."""
    values = part.evidence.get("learning_value")
    names = [f"learning_gain{end}" for end in ("", "_low", "_high")]
    inside = broadcast(kept, part.evidence["length"])
    if values is None or not np.isfinite(values[inside]).all():
        return dict.fromkeys(names, math.nan)
    length = part.evidence["length"][kept]
    distance = part.evidence["distance"][inside]
    even = broadcast(part.evidence["advantage"][kept], length)
    columns = np.stack(
        [
            credit * values[inside],
            (credit * distance) ** 2,
            even * values[inside],
            (even * distance) ** 2,
        ],
        axis=1,
    )
    _, owner = np.unique(part.evidence["group"][kept], return_inverse=True)
    clusters = int(owner.max()) + 1
    sums = cluster_sums(columns, broadcast(owner.astype(np.int64), length), clusters=clusters)

    def ratio(totals: np.ndarray) -> np.ndarray:
        gain, square, base, size = totals.T
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray((gain / np.sqrt(square) / (base / np.sqrt(size)))[:, None])

    plan = Resampling(clusters, config.resamples, config.seed)
    found = intervals(resample(sums, ratio, plan=plan, present=np.ones((clusters, 1), bool)))
    ends = (found.estimate, found.low, found.high)
    return dict(zip(names, (float(end[0]) for end in ends), strict=True))


def located(part: Part, given: dict[str, Dealt], *, config: Config) -> dict[str, dict[str, float]]:
    """AUROC of the first wrong token by the credit of each rule: rule -> columns."""
    found: dict[str, dict[str, float]] = {}
    if not knows_wrong_tokens(part.tokens):
        return found
    blamed = part.evidence["advantage"] < 0
    size = broadcast(np.abs(part.evidence["advantage"]), part.evidence["length"])
    masks = {dealt.kept.tobytes(): dealt.kept for dealt in given.values()}
    for code, kept in masks.items():
        inside = broadcast(kept & blamed, part.evidence["length"])
        # Over the advantage, so that responses of other groups can be compared.
        scores = {
            n: d.along[inside] / size[inside] for n, d in given.items() if d.kept.tobytes() == code
        }
        own = part.tokens.isel(token=np.flatnonzero(inside))
        if not knows_wrong_tokens(own):
            continue
        table = localization(
            own,
            scores={f"rule_{name}": values for name, values in scores.items()},
            resamples=config.resamples,
            seed=config.seed,
        )
        assert table is not None
        for name in scores:
            line: dict[str, float] = {"located_rollouts": table.attrs["n_rollouts"]}
            for statistic in LOCATED:
                one = table.sel(score=f"rule_{name}", statistic=statistic)
                low, high = one["interval"].values.tolist()
                line |= {statistic: one["estimate"].item()}
                line |= {f"{statistic}_low": low, f"{statistic}_high": high}
            found[name] = line
    return found


def correlations(part: Part, given: dict[str, Dealt]) -> tuple[list[str], np.ndarray]:
    """Of ranks within responses, each pair over the responses that both rules were asked about."""
    length = part.evidence["length"]
    start = np.cumsum(length) - length
    plain = {
        "surprisal": -part.evidence["logp"],
        "entropy": part.evidence["entropy"],
        "position": np.arange(int(length.sum())) - broadcast(start, length).astype(np.float64),
    }
    decided = np.abs(np.nan_to_num(part.evidence["advantage"])) > 0
    scores = plain | {name: dealt.along for name, dealt in given.items()}
    kept = {name: dealt.kept & decided for name, dealt in given.items()}
    kept |= dict.fromkeys(PLAIN, decided)
    names = [*given, *PLAIN]
    matrix = np.full((len(names), len(names)), np.nan)
    masks = list({mask.tobytes(): mask for mask in kept.values()}.values())
    for one, other in combinations_with_replacement(masks, 2):
        both = one & other
        if not both.any():
            continue
        inside = broadcast(both, length)
        asked = [n for n in names if any(np.array_equal(kept[n], mask) for mask in (one, other))]
        found = rank_correlations({n: scores[n][inside] for n in asked}, length[both])
        places = [names.index(n) for n in asked]
        sides = np.array([np.array_equal(kept[n], one) for n in asked])
        crossing = sides[:, None] != sides[None, :]
        grid = np.ix_(places, places)
        # A pair of the same mask has its own, larger set of responses.
        matrix[grid] = np.where(crossing | np.array_equal(one, other), found, matrix[grid])
    return names, matrix


def costs(part: Part, rule: Credit) -> dict[str, object]:
    """What gathering takes: passes as stated and by time, seconds for all responses."""
    known = {name: part.cost[name] for name in rule.needs if name in part.cost}
    stated = extra_passes(rule)
    measured = sum(passes for _, passes in known.values())
    tokens = int(part.evidence["length"].sum())
    return {
        "passes_stated": "many" if stated is None else stated,
        "passes_measured": _short(measured) if known else "",
        "gathering_seconds": _short(tokens * sum(s for s, _ in known.values())) if known else "",
    }


def rows(
    part: Part, given: dict[str, Dealt], refused: dict[str, str], *, config: Config
) -> Iterator[dict[str, object]]:
    """A line a rule, all of the same columns."""
    places = located(part, given, config=config)
    kinds = {key: "" for dealt in given.values() for key in dealt.line}
    kinds |= {key: "" for line in places.values() for key in line}
    for name, rule in CATALOGUE.items():
        own: dict[str, object] = dict(given[name].line) if name in given else {}
        own |= places.get(name, {})
        shown = {k: _short(v) if isinstance(v, float) else v for k, v in own.items()}
        yield {
            "part": part.name,
            "rule": shown_name(name, rule),
            "form": rule.form,
            "budget": rule.budget,
            **(kinds | shown),
            **costs(part, rule),
            "not_run": refused.get(name, ""),
        }


def _short(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.4g}"


def measured(part: Part, config: Config, *, out: Path) -> None:
    """All rules over one part, three tables."""
    given: dict[str, Dealt] = {}
    refused: dict[str, str] = {}
    for name, rule in CATALOGUE.items():
        found = dealt(part, name, rule, config=config)
        if isinstance(found, Dealt):
            given[name] = found
        else:
            refused[name] = found
    written(out / f"rules_{part.name}.csv", list(rows(part, given, refused, config=config)))
    names, matrix = correlations(part, given)
    table = [
        {"score": name, **{other: _short(float(v)) for other, v in zip(names, row, strict=True)}}
        for name, row in zip(names, matrix, strict=True)
    ]
    written(out / f"correlations_{part.name}.csv", table)
    pairs = [
        {"part": part.name, "one": one, "other": other, "correlation": _short(value)}
        for one, other, value in twins(names, matrix)
    ]
    empty = [{"part": part.name, "one": "none", "other": "", "correlation": ""}]
    written(out / f"twins_{part.name}.csv", pairs or empty)
    print(f"{part.name}: {len(given)} rules, {len(refused)} not run, {len(pairs)} pairs above .95")
    for name, why in refused.items():
        print(f"  {name}: {why}")


def main(
    name: str,
    config: Config,
    *,
    out: Path,
    work: Path,
    store: Path,
    model: str,
    traces: Path | None = None,
    other: str = "",
) -> None:
    """One part."""
    work = work / f"{name}_{config.problems if name != GSM8K else store.stem}"
    for folder in (out, work):
        folder.mkdir(parents=True, exist_ok=True)
    if name == GSM8K:
        study, policy = ts.Study(store, mode="r"), load_policy(model)
    else:
        study, policy = tiny_study(name, config, work=work)
    known = solutions_of(traces)
    second = load_policy(other) if other else None
    part = read_part(name, study, policy, solutions=known, other=second)
    measured(supplied(part, config, work=work), config, out=out)


def solutions_of(traces: Path | None) -> dict[str, str]:
    """Reference solutions by question."""
    problems = read_gsm8k_solutions(traces).problems if traces else []
    return {problem.question: problem.solution for problem in problems if problem.solution}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--part", choices=(*TEACHERS, GSM8K), default="mixed")
    parser.add_argument("--store", type=Path, default=Path("runs/gsm8k/store.zarr"))
    parser.add_argument("--model", default="", help="that scored the store: hub id, folder, .gguf")
    parser.add_argument("--out", type=Path, default=Path("runs/all_rules"))
    parser.add_argument("--work", type=Path, default=Path("runs/all_rules"))
    parser.add_argument("--traces", type=Path, help="GSM8K model solutions: reference solutions")
    parser.add_argument("--other", default="", help="another checkpoint of the model: teacher")
    parser.add_argument("--told", type=int, default=Config.told, help="see Config")
    parser.add_argument("--headed", type=int, default=Config.headed, help="see Config")
    parser.add_argument("--costly", type=int, default=Config.costly, help="see Config")
    parser.add_argument("--tiny", action="store_true", help="8 problems x 4 responses")
    given_by_user = parser.parse_args()
    sizes = {name: getattr(given_by_user, name) for name in ("told", "headed", "costly")}
    try:
        main(
            given_by_user.part,
            TINY if given_by_user.tiny else Config(**sizes),
            out=given_by_user.out,
            work=given_by_user.work,
            store=given_by_user.store,
            model=given_by_user.model,
            traces=given_by_user.traces,
            other=given_by_user.other,
        )
    except TokensenseError as error:
        sys.exit(f"all_rules: {error}")
