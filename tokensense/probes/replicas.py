"""The numerical floor: the same scores once more under another row plan.

Reads  `/rollouts`, the base and one finished probe, a Policy.
Gives  `/stats/numerical_floor`: quantiles of |stored - replica| for the base's logp, a condition's
       logp and its shift, over the tokens of a sample of rollouts.
Sign   differences are absolute, nats.

The replica scores one branch at a time, padded with nothing and sharing nothing, where the probe
scored many together: sums are taken in another order, and nothing else differs. q99 checks the
machine. It is no cut: in float32 nearly every shift exceeds it.

Source: methods/statistics.md 3.1 (a).
"""

from typing import Any

import numpy as np
import xarray as xr

from tokensense.errors import StatisticsError, StoreError
from tokensense.models.plan import Branch
from tokensense.models.policy import Policy
from tokensense.models.scorer import score
from tokensense.probes.conditions import BASE_CONDITION, Condition
from tokensense.probes.contexts import Problems, prompts, read_problems
from tokensense.schema import BASE, Comparability
from tokensense.segments import offsets
from tokensense.store.archive import Archive
from tokensense.store.inventory import names_in
from tokensense.store.probing import header_of

NODE = "/stats/numerical_floor"
QUANTITIES = ("base", "condition", "shift")
UNITS = {"units": "nats", "description": "of |stored - replica| over the sampled tokens"}


def measure(
    archive: Archive,
    policy: Policy,
    *,
    probe: str | None = None,
    rollouts: int = 8,
    seed: int = 0,
    tokens_per_row: int = 1,
) -> dict[str, Any]:
    """Score the base and a probe's first condition again for a sample, and write the differences.

    What was measured before with the same arguments is read, not measured again.

    Args:
        archive: with the base and the probe finished, open for writing.
        policy: the one that scored them.
        probe: its name; None for `opposed`, or the first that is finished, among those whose first
            condition some rollout may be compared under.
        rollouts: how many to sample; all where there are fewer.
        seed: of the sample.
        tokens_per_row: row plan of the replica; 1 scores one branch at a time.

    Returns:
        Of the shift's differences `q50`, `q99`, `max` in nats, `tokens`, and the `condition`. The
        node `/stats/numerical_floor` has them for base, condition and shift, dim `quantity`.

    Raises:
        StoreError: no probe is finished, or another policy scored it.
        StatisticsError: no rollout may be compared under that condition.
    """
    probe = probe or _any_probe(archive)
    if not archive.is_finished(probe):
        raise StoreError(f"a replica needs a finished probe; `{probe}` is none. Score it first.")
    header = header_of(archive.path, probe)
    if header["policy_digest"] != policy.digest:
        raise StoreError(
            f"a replica needs the policy that scored probe `{probe}` (digest "
            f"{header['policy_digest'][:12]}); `{policy.name}` has {policy.digest[:12]}. Load that."
        )
    asked = {
        "probe": probe,
        "condition": header["conditions"][0]["name"],
        "seed": seed,
        "asked_rollouts": rollouts,
        "replica_tokens_per_row": tokens_per_row,
        "replica_path": "padded",
        "stored_path": header["path"],
        "stored_tokens_per_row": header["tokens_per_row"],
        "policy_digest": policy.digest,
    }
    found = archive.read(NODE) if archive.has(NODE) else xr.Dataset()
    if any(found.attrs.get(name) != value for name, value in asked.items()):
        problems = read_problems(archive.rollouts(), policy)
        stored = {name: archive.read(f"/probes/{name}") for name in (BASE, probe)}
        chosen = _sample(stored, problems, number=rollouts, seed=seed)
        found = _measured(stored, problems, chosen, policy=policy, header=header, asked=asked)
        archive.write_node(NODE, found)
    shift = found.isel(quantity=QUANTITIES.index("shift"))
    quantiles = {name: float(shift[name]) for name in ("q50", "q99", "max")}
    return {**quantiles, "tokens": int(shift["n"]), "condition": asked["condition"]}


def floor(archive: Archive, policy: Policy) -> dict[str, Any]:
    """What `measure` gives, or `not_estimable`: why, where nothing scored may be compared."""
    try:
        return measure(archive, policy)
    except StatisticsError as reason:
        return {"not_estimable": str(reason)}


def _any_probe(archive: Archive) -> str:
    """`opposed`, else the first finished probe beside the base; one that can be measured first."""
    names = names_in(archive, "probes")
    others = [name for name in names if name != BASE]
    if not others:
        raise StoreError(
            f"a numerical floor needs a finished probe beside the base; finished are {names}. "
            "Score one first."
        )
    others.sort(key=lambda name: name != "opposed")
    usable = (name for name in others if _is_comparable(archive.read(f"/probes/{name}")))
    return next(usable, others[0])


def _is_comparable(node: xr.Dataset) -> bool:
    """Whether any rollout may be compared under the first condition."""
    return bool((node["comparability"].isel(condition=0).values == Comparability.OK).any())


def _measured(
    stored: dict[str, xr.Dataset],
    problems: Problems,
    chosen: list[int],
    *,
    policy: Policy,
    header: dict[str, Any],
    asked: dict[str, Any],
) -> xr.Dataset:
    """Score the chosen rollouts one way, read the other, and describe the differences."""
    condition = Condition(**header["conditions"][0])
    scores = score(
        policy,
        _branches(problems, chosen, condition, policy),
        tokens_per_row=asked["replica_tokens_per_row"],
        temperature=header["temperature"],
        path=asked["replica_path"],
    )
    again = [np.concatenate([s.logp for s in scores[side::2]]) for side in (0, 1)]
    bound = offsets(np.array([len(ids) for ids in problems.responses], np.int64))
    tokens = np.concatenate([np.arange(bound[i], bound[i + 1]) for i in chosen])
    first = [node["logp"].isel(condition=0).values[tokens] for node in stored.values()]
    found = _quantiles([*first, first[1] - first[0]], [*again, again[1] - again[0]])
    return found.assign_attrs(
        asked,
        rollouts=chosen,
        scored_by=policy.name,
        dtype=policy.dtype,
        device=policy.device.type,
        description="numerical floor: the same scores under another row plan; checks the machine",
    )


def _sample(
    stored: dict[str, xr.Dataset], problems: Problems, *, number: int, seed: int
) -> list[int]:
    """Rollouts with tokens that may be compared under both first conditions, ascending."""
    usable = np.array([bool(ids) for ids in problems.responses])
    for node in stored.values():
        usable &= node["comparability"].isel(condition=0).values == Comparability.OK
    places = np.flatnonzero(usable)
    if not places.size:
        raise StatisticsError(
            "a numerical floor needs at least one rollout that may be compared under the probe's "
            f"first condition; of {usable.size} rollouts there is none. Use another probe."
        )
    drawn = np.random.default_rng(seed).choice(places, min(number, places.size), replace=False)
    return sorted(drawn.tolist())


def _branches(
    problems: Problems, chosen: list[int], condition: Condition, policy: Policy
) -> list[Branch]:
    """Base and condition of each chosen rollout, in turn."""
    found = []
    for index, (start, end) in enumerate(problems.groups):
        for rollout in (i for i in chosen if start <= i < end):
            asked = prompts(problems, index, (BASE_CONDITION, condition), encoder=policy)
            found += [Branch(prompt.ids, problems.responses[rollout]) for prompt in asked]
    return found


def _quantiles(stored: list[np.ndarray], again: list[np.ndarray]) -> xr.Dataset:
    """Quantiles of absolute differences, one row a quantity."""
    apart = [
        np.abs(np.subtract(a, b, dtype=np.float64)) for a, b in zip(stored, again, strict=True)
    ]
    levels: dict[str, Any] = {
        "q50": [np.quantile(d, 0.5) for d in apart],
        "q99": [np.quantile(d, 0.99) for d in apart],
        "max": [d.max() for d in apart],
    }
    variables = {name: ("quantity", np.array(values), UNITS) for name, values in levels.items()}
    count = ("quantity", np.array([d.size for d in apart], np.int64), {"units": "tokens"})
    return xr.Dataset({**variables, "n": count}, coords={"quantity": list(QUANTITIES)})
