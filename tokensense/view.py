"""A page of tokens from a store: which problems, and all that the store knows of their tokens.

Reads  an Archive: rollouts, finished probes, credit where it was assigned.
Gives  view, a TokenView.
Sign   as in `flat` and `figures.shades`.

States of tokens (the wording floor) are taken from all tokens of the store and then shown for the
problems chosen: what is unresolved does not depend on what else is on the page.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xarray as xr

from tokensense.checks import require_range
from tokensense.errors import SchemaError, StatisticsError
from tokensense.figures.tokens import Question, TokenView, token_view
from tokensense.flat import flat_tokens
from tokensense.rollouts.table import text_of, texts
from tokensense.stats.describe import token_states
from tokensense.store.archive import Archive
from tokensense.store.inventory import names_in


def view(
    archive: Archive,
    path: str | Path | None = None,
    *,
    problem: str | Sequence[str] | None = None,
    limit: int = 8,
) -> TokenView:
    """Lay out the traces of some problems; a notebook shows the page.

    Args:
        archive: with rollouts and a finished base probe; the probe `opposed` for shifts and
            contrasts, `placebo` beside it for the wording floor, `/credit` for weights.
        path: file to write the page to; None to write none.
        problem: name or names; None for the first `limit` problems of the store.
        limit: how many problems, where none is named.

    Raises:
        SchemaError: a problem is not in the store, or `limit` is below 1.
        StoreError: there is no store, no rollouts, or no finished base probe.
        FigureError: the file cannot be written.
    """
    rollouts = archive.rollouts()
    probes = names_in(archive, "probes")
    tokens = flat_tokens(rollouts, {name: archive.read(f"/probes/{name}") for name in probes})
    names = text_of(rollouts, "problem_name")
    chosen = _chosen(names, [problem] if isinstance(problem, str) else problem, limit)
    tokens, notes = _with_states(tokens)
    tokens, lost = _with_weights(tokens, archive)
    tokens = _with_values(tokens, archive)
    shown = tokens.isel(token=np.isin(tokens["problem"].values, chosen))
    table = texts(rollouts)
    rows = zip(rollouts["vocab_id"].values, rollouts["vocab_text"].values, strict=True)
    asked = text_of(rollouts, "question")
    page = token_view(
        shown,
        questions={index: Question(names[index], asked[index]) for index in chosen},
        vocabulary={int(token): table[row] for token, row in rows},
        notes=[*_sources(shown), *_left_out(rollouts, chosen), *notes, *lost],
    )
    if path is not None:
        page.save(path)
    return page


def _chosen(names: list[str], problems: Sequence[str] | None, limit: int) -> list[int]:
    """Indices of the problems to show."""
    require_range("limit", limit, 1, math.inf)
    if problems is None:
        return list(range(min(limit, len(names))))
    unknown = [name for name in problems if name not in names]
    if unknown:
        raise SchemaError(
            f"`problem` needs names of problems in the store; {unknown} are none of its "
            f"{len(names)}. The first are {names[:3]}."
        )
    return [index for index, name in enumerate(names) if name in problems]


def _with_states(tokens: xr.Dataset) -> tuple[xr.Dataset, list[str]]:
    """Mean shifts, contrast and state of each token, or why there are none."""
    try:
        states = token_states(tokens)
    except StatisticsError as reason:
        return tokens, [f"No shifts and contrasts: {reason}"]
    statement = str(states.attrs["statement"])
    joined = tokens.assign(states.data_vars).assign_attrs(wordings=states.attrs["wordings"])
    return joined, [statement] if statement else []


def _with_weights(tokens: xr.Dataset, archive: Archive) -> tuple[xr.Dataset, list[str]]:
    """Weights of the rules that have any, and the names of the others."""
    rules = names_in(archive, "credit")
    found = {rule: archive.read(f"/credit/{rule}") for rule in rules}
    weights = {rule: node["weight"].values for rule, node in found.items()}
    known = {rule: weight for rule, weight in weights.items() if not np.isnan(weight).all()}
    none = [rule for rule in rules if rule not in known]
    lost = [f"No weights under {rule}: it does not multiply the advantage." for rule in none]
    inferred = [rule for rule, node in found.items() if node.attrs.get("grade") == "inferred"]
    if inferred:
        lost.append(f"Reconstructions, part of the formula is a guess: {', '.join(inferred)}.")
    if not known:
        return tokens, lost
    stacked = xr.DataArray(list(known.values()), dims=("rule", "token"), coords={"rule": [*known]})
    return tokens.assign(weight=stacked), lost


def _with_values(tokens: xr.Dataset, archive: Archive) -> xr.Dataset:
    """Learning value and value drop, where nodes of those names hold one number a token."""
    there = set(names_in(archive, "stats"))
    found = {
        name: archive.read(f"/stats/{name}")[name]
        for name in ("learning_value", "value_drop")
        if name in there
    }
    found = {name: array for name, array in found.items() if array.dims == ("token",)}
    if "value_drop" in found:
        tokens = tokens.assign(value_drop=("token", found["value_drop"].values))
    rules = tokens["rule"].values.tolist() if "rule" in tokens.dims else []
    if "learning_value" in found and rules:
        credit = [archive.read(f"/credit/{rule}")["credit"].values for rule in rules]
        product = np.stack(credit) * found["learning_value"].values
        tokens = tokens.assign(contribution=(("rule", "token"), product))
    return tokens


def _sources(tokens: xr.Dataset) -> list[str]:
    """Who wrote and who scored the tokens."""
    sampled = ", ".join(np.unique(tokens["generator"].values).tolist())
    mark = ", which is not known to have drawn them (off-policy)" * bool(tokens.attrs["off_policy"])
    who = f"Tokens by {sampled}" if sampled else "Who sampled the tokens is not known"
    return [f"{who}; scored by {tokens.attrs['scored_by']}{mark}."]


def _left_out(rollouts: xr.Dataset, chosen: list[int]) -> list[str]:
    """What the page does not show."""
    found = []
    if len(chosen) < rollouts.sizes["problem"]:
        found.append(f"{len(chosen):,} of the store's {rollouts.sizes['problem']:,} problems.")
    shown = np.isin(rollouts["problem_of"].values, chosen)
    empty = int((rollouts["length"].values[shown] == 0).sum())
    if empty:
        found.append(f"{empty:,} responses of these problems have no tokens and are not shown.")
    return found
