"""DelTA's centers of a store: one pass of the policy over its rollouts, results kept as nodes.

Reads  a Study (rollouts, base), the policy that scored it.
Gives  centers: `/stats/centers`, `/stats/center_lambda`, `/stats/center_types`.
Sign   as in `stats.center_results`.

The vectors themselves, one a token, are not kept: they are as large as the policy's hidden states.
"""

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr
from jaxtyping import Bool

from tokensense.credit.advantages import ADVANTAGES
from tokensense.credit.delta import row_gradient
from tokensense.errors import StatisticsError, StoreError
from tokensense.flat import flat_tokens
from tokensense.models.plan import Branch
from tokensense.models.policy import Policy
from tokensense.probes.proxies import head_view
from tokensense.rollouts.table import texts
from tokensense.schema import BASE
from tokensense.segments import broadcast, offsets
from tokensense.stats.center_results import Pool, center_results
from tokensense.store.archive import Archive

if TYPE_CHECKING:
    from tokensense.study import Study

# Numbers in the vectors of all tokens: 4 GiB of float64.
LARGEST = 2**29


def centers(
    study: "Study",
    policy: Policy,
    *,
    advantage: str = "group_std",
    resamples: int = 2_000,
    seed: int = 0,
) -> dict[str, xr.Dataset]:
    """Compute DelTA's two centers of a study and keep them in its store.

    Args:
        study: with rollouts and a finished base probe.
        policy: that scored it.
        advantage: as for `assign_credit`.
        resamples: draws of problem texts.
        seed: of everything random.

    Returns:
        Results by name, as `stats.center_results` gives them.

    Raises:
        StoreError: there is no base, another policy made it, or the store cannot be written.
        StatisticsError: one of the two sides is empty, or the vectors are too large for memory.
    """
    archive = study.archive()
    rollouts = archive.rollouts()
    tokens = scored_by(policy, archive)
    kept = usable_rollouts(tokens, rollouts)
    reward = rollouts["reward"].values.astype(np.float64)
    problem = rollouts["problem_of"].values.astype(np.int64)
    length = rollouts["length"].values.astype(np.int64)
    branches = branches_of(rollouts, np.flatnonzero(kept))
    size = sum(len(branch.response) for branch in branches) * policy.model.config.hidden_size
    if size > LARGEST:
        raise StatisticsError(
            f"centers need the vectors of all tokens in memory, {8 * size / 2**30:.0f} GiB here; "
            f"at most {8 * LARGEST / 2**30:.0f} GiB. Take fewer problems into a store."
        )
    view = head_view(policy, branches)
    inside = broadcast(kept, length)
    _, cluster = np.unique(rollouts["cluster"].values[problem][kept], return_inverse=True)
    found = center_results(
        row_gradient(view.hidden, view.logp),
        ADVANTAGES[advantage](reward[kept], problem[kept]),
        Pool(
            length[kept],
            cluster.astype(np.int64),
            problem[kept],
            tokens["kind"].values[inside].astype(str),
            tokens["token_id"].values[inside].astype(np.int64),
        ),
        attrs={**tokens.attrs, "advantage": advantage},
        resamples=resamples,
        seed=seed,
    )
    found["center_types"] = _named(found["center_types"], rollouts)
    with archive:
        archive.write_nodes({f"/stats/{name}": result for name, result in found.items()})
    return found


def scored_by(policy: Policy, archive: Archive) -> xr.Dataset:
    """Tokens of a store under base, which this policy must have scored.

    Raises:
        StoreError: there is no base, or another policy made it.
    """
    tokens = flat_tokens(archive.rollouts(), {BASE: archive.read(f"/probes/{BASE}")})
    made_by = tokens.attrs.get("policy_digest", policy.digest)
    if made_by != policy.digest:
        raise StoreError(
            f"gradients need the policy that scored the store, {tokens.attrs['scored_by']} "
            f"({made_by[:12]}); this one is {policy.name} ({policy.digest[:12]}). Name the same "
            "one as in `probe`."
        )
    return tokens


def usable_rollouts(tokens: xr.Dataset, rollouts: xr.Dataset) -> Bool[np.ndarray, " rollout"]:
    """Rollouts that have tokens, a reward, and a usable base."""
    comparable = tokens["comparable"].sel(condition=BASE).values.astype(bool)
    decided = np.isfinite(rollouts["reward"].values.astype(np.float64))
    return np.asarray(decided & comparable & (rollouts["length"].values > 0))


def branches_of(rollouts: xr.Dataset, kept: np.ndarray) -> list[Branch]:
    """Prompts and responses of those rollouts, ids as they are stored."""
    prompt, response = rollouts["prompt_id"].values.tolist(), rollouts["token_id"].values.tolist()
    starts = offsets(rollouts["prompt_length"].values.astype(np.int64))
    ends = offsets(rollouts["length"].values.astype(np.int64))
    return [
        Branch(
            tuple(prompt[starts[problem] : starts[problem + 1]]),
            tuple(response[ends[rollout] : ends[rollout + 1]]),
        )
        for rollout in kept.tolist()
        for problem in [int(rollouts["problem_of"].values[rollout])]
    ]


def _named(types: xr.Dataset, rollouts: xr.Dataset) -> xr.Dataset:
    """Token types with their texts, quoted, so that spaces show."""
    table = texts(rollouts)
    rows = dict(
        zip(rollouts["vocab_id"].values.tolist(), rollouts["vocab_text"].values, strict=True)
    )
    words = [repr(table[int(rows[one])].decode("utf-8", "backslashreplace"))
             for one in types["token_id"].values.tolist()]  # fmt: skip
    return types.assign_coords(text=("type", words))
