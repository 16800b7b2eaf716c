"""What `Study.probe` does: choose conditions, foresee the work, score.

Reads  a store with rollouts, the scoring policy, names of probes, a file of conditions.
Gives  chosen, foreseen, scored.
Sign   shift = logp[condition] - logp[base], nats; positive: the token becomes likelier.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from tokensense.checks import require_member
from tokensense.models.policy import Policy
from tokensense.models.processes import together
from tokensense.probes import CATALOGUE, cost, replicas, rescore, templates
from tokensense.probes.conditions import Condition
from tokensense.store.archive import Archive

PROBES = ("opposed", "placebo", "neutral")
Conditions = Mapping[str, Sequence[Condition]]


def chosen(
    policy: Policy,
    probes: Sequence[str] | None,
    *,
    conditions: str | Path | None,
    name: str,
    frames: int | None,
    families: int | None,
    wordings: int,
) -> dict[str, Sequence[Condition]]:
    """Conditions by probe; arguments and errors as for `Study.probe`.

    Raises:
        SchemaError: an unknown probe.
        ConditionError: the conditions cannot be built for this policy, or `name` is that of a
            shipped probe.
    """
    wanted = (PROBES if conditions is None else ()) if probes is None else probes
    for probe in wanted:
        require_member("probe", probe, CATALOGUE)
    found: dict[str, Sequence[Condition]] = {
        probe: CATALOGUE[probe](policy, frames=frames, families=families, wordings=wordings)
        for probe in wanted
    }
    if conditions is not None:
        templates.require_own_name(name)
        found[name] = templates.from_file(conditions)
    return found


def foreseen(path: Path, policy: Policy, asked: Conditions) -> dict[str, Any]:
    """What scoring would cost; see `cost.estimate`.

    Raises:
        StoreError: there is no such store, or see `cost.estimate`.
    """
    with Archive(path, mode="r") as archive:
        return cost.estimate(archive, policy, asked)


def scored(
    path: Path, policy: Policy, asked: Conditions, *, mode: Literal["a", "r"], progress: bool
) -> dict[str, Any]:
    """Score, alone or as one of several processes, then look at the numerical floor.

    Raises:
        StoreError: see `rescore.run_probes`.
        LockError: another run is writing.
        ProcessError: fewer processes came than were asked for, or one ended early.
    """
    Archive(path, mode="r").rollouts()  # a store that is not there is not made here
    with (
        together() as processes,
        Archive(path, mode=mode if processes.is_first else "blocks") as archive,
    ):
        done = rescore.run_probes(archive, policy, asked, processes=processes, progress=progress)
        with processes.first_goes_first():
            return {**done, "numerical_floor": replicas.floor(archive, policy)}
