"""The descriptive statistics of two opposed conditions: name, unit, meaning and formula of each.

Reads  sums over tokens of the columns of `shifts.token_columns`.
Gives  CATALOGUE: name -> Statistic.
Sign   positive shift: likelier under the condition; positive contrast: likelier under pos.

Every statistic is a function of sums, so that a resample of problems is a matrix product. A rank
correlation is the Pearson correlation of full-sample ranks: Spearman's on the full sample, and
close to it in a resample.

These are descriptions. None tells an answer signal from sensitivity: two irrelevant words give the
same same-direction share as two verdicts. Print them beside the placebo's, never alone.

Source   findings F1 and F2 of arXiv:2607.27888, whose exact definitions are not public; these are
         ours. Gaussian reading: P(same sign) = 1/2 + asin(r)/pi for centered bivariate normals.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

Sums = Mapping[str, np.ndarray]


class Statistic(NamedTuple):
    """One row of the catalogue.

    Attributes:
        units: of the value.
        meaning: in plain words.
        denominator: the column whose sum must be positive for a problem to have a part in it.
        finish: sums by column name -> value; NaN where it is not defined.
    """

    units: str
    meaning: str
    denominator: str
    finish: Callable[[Sums], np.ndarray]


def ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Divide; NaN where nothing is below.

    Args:
        above: sums.
        below: sums, not negative.
    """
    filled = below > 0
    return np.where(filled, above / np.where(filled, below, 1.0), np.nan)


def correlation(sums: Sums, name: str) -> np.ndarray:
    """Pearson's correlation from sums of products; NaN where a side does not vary.

    Args:
        sums: of `token_columns`.
        name: which pair of columns: value, rank or surprisal.
    """
    tokens = sums["tokens"]
    # Columns are standardized on the full sample, so that the subtractions here lose no digits.
    x_mean, y_mean = (ratio(sums[f"{name}_{axis}"], tokens) for axis in "xy")
    x_part = ratio(sums[f"{name}_xx"], tokens) - x_mean**2
    y_part = ratio(sums[f"{name}_yy"], tokens) - y_mean**2
    varies = (x_part > 1e-12) & (y_part > 1e-12)
    scale = np.sqrt(np.where(varies, x_part * y_part, 1.0))
    product = ratio(sums[f"{name}_xy"], tokens) - x_mean * y_mean
    return np.where(varies, np.clip(product / scale, -1.0, 1.0), np.nan)


CATALOGUE: dict[str, Statistic] = {
    "same_direction": Statistic(
        "1",
        "share of tokens with any shift that both conditions move the same way",
        "affected_any",
        lambda m: ratio(m["same_any"], m["affected_any"]),
    ),
    "same_direction_above_floor": Statistic(
        "1",
        "the same among tokens whose larger |shift| exceeds the wording floor",
        "affected_floor",
        lambda m: ratio(m["same_floor"], m["affected_floor"]),
    ),
    "same_direction_above_0.05": Statistic(
        "1",
        "the same among tokens whose larger |shift| exceeds .05 nats",
        "affected_fixed",
        lambda m: ratio(m["same_fixed"], m["affected_fixed"]),
    ),
    "same_direction_if_gaussian": Statistic(
        "1",
        "same-direction share of centered Gaussian shifts of this (winsorized) correlation: "
        "1/2 + asin(r)/pi",
        "tokens",
        lambda m: 0.5 + np.arcsin(correlation(m, "value")) / np.pi,
    ),
    "reversal": Statistic(
        "1",
        "share of tokens with any shift that the two conditions move opposite ways",
        "affected_any",
        lambda m: ratio(m["reversed_any"], m["affected_any"]),
    ),
    "reversal_above_floor": Statistic(
        "1",
        "the same among tokens whose larger |shift| exceeds the wording floor",
        "affected_floor",
        lambda m: ratio(m["reversed_floor"], m["affected_floor"]),
    ),
    "reversal_above_0.05": Statistic(
        "1",
        "the same among tokens whose larger |shift| exceeds .05 nats",
        "affected_fixed",
        lambda m: ratio(m["reversed_fixed"], m["affected_fixed"]),
    ),
    "affected_above_floor": Statistic(
        "1",
        "share of tokens whose larger |shift| exceeds the wording floor",
        "floor_tokens",
        lambda m: ratio(m["affected_floor"], m["floor_tokens"]),
    ),
    "affected_above_0.05": Statistic(
        "1",
        "share of tokens whose larger |shift| exceeds .05 nats",
        "tokens",
        lambda m: ratio(m["affected_fixed"], m["tokens"]),
    ),
    "correlation": Statistic(
        "1",
        "Pearson correlation of z+ and z- over tokens, each winsorized at 1 and 99 %",
        "tokens",
        lambda m: correlation(m, "value"),
    ),
    "rank_correlation": Statistic(
        "1",
        "Spearman correlation of z+ and z- over tokens",
        "tokens",
        lambda m: correlation(m, "rank"),
    ),
    "contrast_variance_share": Statistic(
        "1",
        "Var(d)/(Var(m)+Var(d)), variances within trajectories, pooled over tokens",
        "tokens",
        lambda m: ratio(m["contrast_squares"], m["contrast_squares"] + m["common_squares"]),
    ),
    "mean_shift": Statistic(
        "nats", "mean of z+ and z-, with sign", "tokens", lambda m: ratio(m["shift"], m["tokens"])
    ),
    "mean_contrast": Statistic(
        "nats",
        "mean of d, with sign; positive: likelier under pos",
        "tokens",
        lambda m: ratio(m["contrast"], m["tokens"]),
    ),
    "mean_absolute_shift": Statistic(
        "nats", "mean of |z+| and |z-|", "tokens", lambda m: ratio(m["absolute"], m["tokens"])
    ),
    "mean_absolute_common": Statistic(
        "nats", "mean of |m|", "tokens", lambda m: ratio(m["absolute_common"], m["tokens"])
    ),
    "mean_absolute_contrast": Statistic(
        "nats", "mean of |d|", "tokens", lambda m: ratio(m["absolute_contrast"], m["tokens"])
    ),
    "mean_sensitivity": Statistic(
        "nats", "mean of max(|z+|, |z-|)", "tokens", lambda m: ratio(m["sensitivity"], m["tokens"])
    ),
    "mean_standardized_shift": Statistic(
        "nats",
        "mean of |shift| / ||onehot - p||, tokens with a distance of at least .001",
        "standard_tokens",
        lambda m: ratio(m["standard"], m["standard_tokens"]),
    ),
    "sensitivity_to_surprisal": Statistic(
        "1",
        "Spearman correlation of max(|z+|, |z-|) with surprisal over tokens",
        "tokens",
        lambda m: correlation(m, "surprisal"),
    ),
}
