"""Intervals that hold for all outputs at once: the largest of their deviations is bounded.

Reads  Draws of a row of outputs, all of the same resamples.
Gives  limits of each output such that all of them hold together at the level asked for.
Sign   none of its own.

Max-t: in each resample the largest |value - estimate| / standard error over the outputs; its
quantile times the standard error is the half width of each. Outputs without an interval of their
own, or below 20 problem texts, get none, and take no part. Equal outputs cost nothing.

Source   Romano and Wolf 2005, Econometrica 73, 1237; `statistics.md` 3.12.
"""

import numpy as np
from jaxtyping import Float

from tokensense.stats.resampling import BOOTSTRAP_FROM, Draws


def max_t(draws: Draws, *, level: float = 0.95) -> Float[np.ndarray, " output two"]:
    """Simultaneous limits of a row of outputs.

    Args:
        draws: one dim of outputs.
        level: coverage of all together.

    Returns:
        Low and high, unit of the outputs; NaN where there are none.
    """
    error = draws.values.std(axis=0, ddof=1)
    taking = np.isfinite(error) & (error > 0) & (draws.clusters >= BOOTSTRAP_FROM)
    limits = np.full((draws.estimate.size, 2), np.nan)
    if not taking.any():
        return limits
    gap = np.abs(draws.values[:, taking] - draws.estimate[taking]) / error[taking]
    reach = np.quantile(gap.max(axis=1), level) * error[taking]
    limits[taking] = draws.estimate[taking, None] + reach[:, None] * np.array([-1.0, 1.0])
    return limits
