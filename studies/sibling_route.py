"""Does telling right from wrong siblings find the wrong digit, or the sibling's route?

    OMP_NUM_THREADS=1 python -m studies.sibling_route --model smollm2.gguf --out data/sibling_route

Carry errors: of each problem a right response and one with a dropped carry, alike but for it. Both
are scored with a pair of siblings shown, one right and one wrong:

    copy      the opposed sibling is the response's own counterpart, word by word; the other one has
              the outcome of the response, in other words
    same      both on the route of the response, in other words
    other     both on another route to the same result
    foreign   both of a foreign problem, on the route of the response

Asked is whether the first digit in which the two responses differ is among the three tokens of
largest weight. `gcpo` is shown no sibling; `surprisal` and `random` are controls that know nothing.

The texts are those of `sibling_texts`. A sibling is shown to a tiny policy as an example before the
question, and told to a model of language as by the probe `sibling`.

Where weights are equal, a hit counts by its chance under random order. `shares.csv` has shares with
Wilson intervals and n problems; `story.csv` is 15 x 23 token by token, whatever comes out: C says
"35" on the route of the response, D "105" on the other; `studies.sibling_story` makes a page of it.
A run that is stopped goes on.

Source: methods/statistics.md, "Sibling contrast copies the sibling's route"; the story is that of
popular accounts of arXiv:2605.29198.
"""

import argparse
import csv
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from statsmodels.stats.proportion import proportion_confint

from studies.rows import written
from studies.sibling_texts import Told, Written, product, products, sums
from tokensense.credit import CATALOGUE
from tokensense.credit.base import weights_of
from tokensense.credit.evidence import Evidence
from tokensense.errors import TokensenseError
from tokensense.models import tiny
from tokensense.models.plan import Branch
from tokensense.models.policy import Policy, load_policy
from tokensense.models.scorer import score
from tokensense.probes import bank

TOP = 3
NO_PAIR = "none"
FOREIGN_TEXT = 'Somebody solved another problem, "{question}", as follows.\n\n{sibling}\n\n'
FOREIGN_TEXT += "Now solve the problem above yourself."
LINE_KEYS = ("policy", "problem", "response", "siblings", "rule")


@dataclass(frozen=True)
class Config:
    """What was fixed before the first run.

    Attributes:
        policies: tiny ones.
        problems: of each.
        seed: of the problems.
    """

    policies: tuple[str, ...] = ("tiny:truthful", "tiny:style", "tiny:mixed")
    problems: int = 100
    seed: int = 0


TINY = Config(policies=("tiny:mixed",), problems=8)


def shown_to_tiny(policy: Policy, told: Told, question: str, sibling: str) -> list[int]:
    """An example before the question: the sibling with the question that it answers."""
    return [*policy.render(question), *policy.encode(sibling), *policy.render(told.question)]


def shown_to_reader(policy: Policy, told: Told, question: str, sibling: str) -> list[int]:
    """The sibling behind the question, as the probe `sibling` tells it."""
    form = bank.SIBLING_TEXT if question == told.question else FOREIGN_TEXT
    return policy.render(told.question, insert=form.format(sibling=sibling, question=question))


class Kind(NamedTuple):
    """How problems of a policy are made, siblings shown, and a wrong answer asked for."""

    draw: Callable[[np.random.Generator], Told]
    shown: Callable[[Policy, Told, str, str], list[int]]
    wrong_request: str


SUMS = Kind(sums, shown_to_tiny, "verdict wrong")
PRODUCTS = Kind(products, shown_to_reader, bank.REQUEST_FRAMES["give"].replace("{word}", "wrong"))


def kind_of(policy: Policy) -> Kind:
    """Sums for the tiny policies, products for others."""
    return SUMS if policy.name.startswith(tiny.SCHEME) else PRODUCTS


def problems(kind: Kind, count: int, seed: int) -> list[Told]:
    """Distinct questions; each one's foreign problem is the next, the last one's the first."""
    rng, found = np.random.default_rng(seed), dict[str, Told]()
    while len(found) < count:
        told = kind.draw(rng)
        found[told.question] = told
    return list(found.values())


class Response(NamedTuple):
    """One response with the weights that each rule gives it.

    weights: (siblings, rule) -> of every token. digit: index of the first digit that differs.
    contrast: siblings -> shift under the right one minus that under the wrong one, nats.
    """

    ids: tuple[int, ...]
    digit: int
    weights: dict[tuple[str, str], np.ndarray]
    contrast: dict[str, np.ndarray]


def pairs_of(told: Told, foreign: Told, side: str) -> dict[str, tuple[str, Written]]:
    """Siblings -> the question that they answer, and their texts; never the response's own."""
    same, opposed = told.siblings["same"], "wrong" if side == "right" else "right"
    return {
        "copy": (told.question, same._replace(**{opposed: getattr(told.own, opposed)})),
        "same": (told.question, same),
        "other": (told.question, told.siblings["other"]),
        "foreign": (foreign.question, foreign.siblings["same"]),
    }


def measured(policy: Policy, kind: Kind, told: Told, foreign: Told) -> dict[str, Response]:
    """Weights of the right and of the wrong response by every rule."""
    ids = {side: tuple(policy.encode(getattr(told.own, side))) for side in Written._fields}
    digit = first_difference(*ids.values())
    pairs = {side: pairs_of(told, foreign, side) for side in ids}
    asked = [
        (side, name, Branch(tuple(context), own))
        for side, own in ids.items()
        for name, context in _contexts(policy, kind, told, pairs[side]).items()
    ]
    logp: dict[str, dict[str, np.ndarray]] = {side: {} for side in ids}
    scored = score(policy, [branch for *_, branch in asked])
    for (side, name, _), found in zip(asked, scored, strict=True):
        logp[side][name] = found.logp.astype(np.float64)
    return {
        side: _weighed(policy, own, logp[side], pairs[side], digit=digit, right=side == "right")
        for side, own in ids.items()
    }


def _contexts(
    policy: Policy, kind: Kind, told: Told, pairs: Mapping[str, tuple[str, Written]]
) -> dict[str, list[int]]:
    """What stands before a response: nothing, the request for a wrong answer, each sibling."""
    shown = {
        f"{name}_{side}": kind.shown(policy, told, question, getattr(texts, side))
        for name, (question, texts) in pairs.items()
        for side in Written._fields
    }
    negative = policy.render(told.question, insert=kind.wrong_request)
    return {"base": policy.render(told.question), "negative": negative, **shown}


def first_difference(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Index of the first id that differs."""
    return next(i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)


def _weighed(
    policy: Policy,
    ids: tuple[int, ...],
    logp: Mapping[str, np.ndarray],
    pairs: Mapping[str, tuple[str, Written]],
    *,
    digit: int,
    right: bool,
) -> Response:
    """Weights of one response."""
    advantage = np.array([1.0 if right else -1.0])
    shift = {name: values - logp["base"] for name, values in logp.items()}

    def weight(rule: str, **evidence: np.ndarray) -> np.ndarray:
        length = np.array([len(ids)])
        given = {"length": length, "advantage": advantage} | evidence
        return np.asarray(weights_of(CATALOGUE[rule], Evidence(**given)))[: len(ids)]

    found = {
        (NO_PAIR, "gcpo"): weight("gcpo", negative_prompt=shift["negative"]),
        (NO_PAIR, "surprisal"): -logp["base"],
        (NO_PAIR, "random"): np.ones(len(ids)),
    }
    contrast = {}
    for name, (_, texts) in pairs.items():
        sides = {f"sibling_{s[:3]}": shift[f"{name}_{t}"] for s, t in SIDES.items()}
        contrast[name] = sides["sibling_pos"] - sides["sibling_neg"]
        found[name, "sibling"] = weight("sibling", **sides)
        opposed = tuple(policy.encode(texts.wrong if right else texts.right))
        group = {
            "length": np.array([len(ids), len(opposed)]),
            "advantage": np.concatenate([advantage, -advantage]),
            "group": np.zeros(2, np.int64),
            "token_id": np.array([*ids, *opposed]),
        }
        for rule in ("position_alignment", "diff_alignment"):
            found[name, rule] = weight(rule, **group)
    return Response(ids, digit, found, contrast)


SIDES = {"positive": "right", "negative": "wrong"}


def chance_in_top(values: np.ndarray, place: int, *, top: int = TOP) -> float:
    """Chance that a token is among the `top` largest, equal ones in random order.

    Example:
        >>> chance_in_top(np.array([1.0, 1.0, 0.0, 0.0]), 0, top=1)
        0.5
        >>> chance_in_top(np.array([3.0, 2.0, 1.0]), 2, top=2)
        0.0
    """
    # Weights that differ in the last digits only are equal by their formula.
    settled = np.round(values / max(np.abs(values).max(), 1e-300), 12)
    above = int((settled > settled[place]).sum())
    equal = int((settled == settled[place]).sum())
    return min(max(top - above, 0) / equal, 1.0)


def lines(
    policy: Policy, number: int, found: Mapping[str, Response]
) -> Iterator[dict[str, object]]:
    """A line a response, pair of siblings and rule."""
    for side, response in found.items():
        for (siblings, rule), weights in response.weights.items():
            keys = (policy.name, number, side, siblings, rule)
            yield {
                **dict(zip(LINE_KEYS, keys, strict=True)),
                "hit": chance_in_top(weights, response.digit),
                "above": int((weights > weights[response.digit]).sum()),
                "tokens": len(response.ids),
            }


def shares(rows: list[dict[str, str]]) -> Iterator[dict[str, object]]:
    """Share of hits with its Wilson interval, by all but the problem."""
    keys = [key for key in LINE_KEYS if key != "problem"]
    for group in dict.fromkeys(tuple(row[key] for key in keys) for row in rows):
        own = [row for row in rows if tuple(row[key] for key in keys) == group]
        hits = sum(float(row["hit"]) for row in own)
        low, high = proportion_confint(hits, len(own), method="wilson")
        yield {
            **dict(zip(keys, group, strict=True)),
            "share": round(hits / len(own), 4),
            "low": round(float(low), 4),
            "high": round(float(high), 4),
            "n": len(own),
            "median_above": float(np.median([int(row["above"]) for row in own])),
            "mean_tokens": round(float(np.mean([int(row["tokens"]) for row in own])), 1),
        }


def story(policy: Policy, kind: Kind) -> Iterator[dict[str, object]]:
    """15 × 23 token by token: the right response (45) and C's own (35)."""
    found = measured(policy, kind, product(15, 23), product(27, 14))
    for side, response in found.items():
        for place, token in enumerate(response.ids):
            columns = {
                "/".join(key): round(float(values[place]), 4)
                for key, values in response.weights.items()
                if key[1] not in ("random", "surprisal")
            }
            yield {
                "response": side,
                "place": place,
                "token": policy.token_bytes(token).decode("utf-8", "replace"),
                "first_differing": int(place == response.digit),
                "surprisal": round(float(response.weights[NO_PAIR, "surprisal"][place]), 4),
                **{
                    f"contrast_{n}": round(float(e[place]), 4) for n, e in response.contrast.items()
                },
                **columns,
            }


def run(policy: Policy, config: Config, *, path: Path) -> list[dict[str, str]]:
    """Lines of one policy; problems that are there are not scored again."""
    kind = kind_of(policy)
    asked = problems(kind, config.problems, config.seed)
    done = {int(row["problem"]) for row in _read(path)}
    for number, told in enumerate(asked):
        if number not in done:
            found = measured(policy, kind, told, asked[(number + 1) % len(asked)])
            written(path, list(lines(policy, number, found)), add=True)
            print(f"{policy.name}  {number + 1}/{len(asked)}", flush=True)
    return [row for row in _read(path) if int(row["problem"]) < config.problems]


def _read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def main(
    config: Config,
    *,
    model: str | None = None,
    out: Path,
    work: Path = Path("runs/sibling_route"),
) -> None:
    """All policies, two tables."""
    for folder in (out, work):
        folder.mkdir(parents=True, exist_ok=True)
    table: list[dict[str, object]] = []
    for name in (*config.policies, *([model] if model else [])):
        policy = load_policy(name)
        path = work / f"lines_{Path(name).stem.replace(':', '_')}_{config.problems}.csv"
        table += shares(run(policy, config, path=path))
        written(out / "shares.csv", table)
        if kind_of(policy) is PRODUCTS:
            written(out / "story.csv", list(story(policy, PRODUCTS)))
    for row in table:
        print(
            f"{row['policy']:<34}{row['response']:<6} {row['siblings']:<8}{row['rule']:<19}"
            f"{row['share']:.2f} [{row['low']:.2f}, {row['high']:.2f}]  n {row['n']}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", help="a model of language: hub id, folder or .gguf")
    parser.add_argument("--problems", type=int, default=Config.problems)
    parser.add_argument("--out", type=Path, default=Path("runs/sibling_route"))
    parser.add_argument("--work", type=Path, default=Path("runs/sibling_route"))
    parser.add_argument("--tiny", action="store_true", help="one tiny policy, 8 problems")
    given = parser.parse_args()
    try:
        main(
            TINY if given.tiny else Config(problems=given.problems),
            model=given.model,
            out=given.out,
            work=given.work,
        )
    except TokensenseError as error:
        sys.exit(f"sibling_route: {error}")
