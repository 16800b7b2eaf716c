"""All statistics of a study, kept in its store.

Reads  the tokens of a Study, weights of rules that were assigned before.
Gives  analyze.
Sign   as in `stats.describe`: difference = verdict - placebo.
"""

from typing import TYPE_CHECKING

import xarray as xr

from tokensense.errors import MissingExtraError
from tokensense.flat import flat_tokens
from tokensense.results import Results
from tokensense.stats.describe import describe
from tokensense.store.archive import Archive
from tokensense.store.inventory import names_in

if TYPE_CHECKING:
    from tokensense.study import Study

# Tokens x conditions; above, an analysis reads scores from disk as it goes (256 MiB a variable).
SCORES_AT_ONCE = 2**26


def analyze(study: "Study", *, resamples: int = 10_000, seed: int = 0) -> Results:
    """Describe the shifts of a study and keep the results in its store.

    Args:
        study: with the probes `opposed` and, for the triple, `placebo`.
        resamples: of the one-stage cluster bootstrap over problem texts.
        seed: of the bootstrap.

    Memory grows with tokens, not with conditions: scores of a large store stay on disk (needs dask,
    the extra `io`), and some .7 KB a token are held.

    Returns:
        Analysis name -> Dataset; see `stats.describe.describe`. Each statistic comes as verdict,
        placebo, difference. Weights of rules that were assigned before are scores of
        `localization`.

    Raises:
        StoreError: no finished probe.
        StatisticsError: there is no verdict pair that any rollout can use.
    """
    archive = study.archive()
    tokens = _tokens_to_analyze(study)
    weights = {
        f"weight_{rule}": archive.read(f"/credit/{rule}")["weight"].values
        for rule in names_in(archive, "credit")
    }
    results = Results(describe(tokens, scores=weights, resamples=resamples, seed=seed))
    with archive:
        archive.write_nodes({f"/stats/{name}": dataset for name, dataset in results.items()})
    return results


def _tokens_to_analyze(study: "Study") -> xr.Dataset:
    """All tokens; scores of a large store stay on disk, and are read condition by condition."""
    archive = Archive(study.path, mode="r")
    names = names_in(archive, "probes")
    try:
        nodes = {name: archive.read(f"/probes/{name}", lazy=True) for name in names}
    except MissingExtraError:  # no dask
        return study.tokens()
    conditions = sum(node.sizes["condition"] for node in nodes.values())
    rollouts = archive.rollouts()
    if rollouts.sizes["token"] * conditions < SCORES_AT_ONCE:
        return study.tokens()
    return flat_tokens(rollouts, nodes)
