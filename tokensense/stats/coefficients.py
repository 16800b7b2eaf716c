"""DelTA's coefficients: their distribution, their token types, and what proxies do to them.

Reads  Fits of credit.delta, advantages, token ids.
Gives  lambda_numbers, token_types, proxy_agreement.
Sign   a larger coefficient: the token counts for more.

As most tokens of a trained model are confident, and their vectors nearly zero, one value a side
makes up the bulk of the distribution: the offset ||mu-||^2 - ||mu+||^2 over the temperature.

Source: methods/delta.md section 2.4 and section 6, D, E, H; claim 19 of methods/claims.md.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int64
from scipy.stats import rankdata

from tokensense.credit.delta import Fit, Geometry, sigmoid
from tokensense.errors import StatisticsError

LAMBDA_NUMBERS: dict[str, str] = {
    "mean_positive": "mean over tokens with A > 0",
    "mean_negative": "mean over tokens with A < 0",
    "deviation": "standard deviation",
    "effective": "(sum)^2 / (n sum of squares)",
    "gini": "Gini coefficient",
    "confident": "share within 1 % of the value that a token of zero gradient has on its side",
    "mean_logit": "||mu+ - mu-||^2 over the temperature, mean of both sides",
}
NEAR = 0.01


class Agreement(NamedTuple):
    """Two proxies on the same tokens.

    spearman: rank correlation of alpha. overlap: share of the top half in common. sign: share of
    equal signs of the margin. tokens: how many were compared.
    """

    spearman: float
    overlap: float
    sign: float
    tokens: int


def lambda_numbers(
    found: Fit,
    geometry: Geometry,
    advantage: Float64[np.ndarray, " token"],
    *,
    low: float = 0.8,
    high: float = 1.2,
) -> dict[str, float]:
    """Values of LAMBDA_NUMBERS, over tokens with advantage.

    Args:
        found: of `credit.delta.fit` on the same tokens.
        geometry: that it was made in.
        advantage: of each token's response.
        low: lambda at alpha 0.
        high: lambda at alpha 1.
    """
    own = advantage != 0
    lam = (low + (high - low) * found.alpha)[own]
    right = np.asarray(advantage[own] > 0)
    contrast = geometry(*found.weights)
    offset = contrast.negative - contrast.positive
    # v = 0: only the difference of the norms is left of the margin.
    constant = sigmoid(offset * np.array([1.0, -1.0]) / found.gamma)
    confident = low + (high - low) * np.where(right, constant[0], constant[1])
    apart = float((found.weights[0] - found.weights[1]) @ contrast.alignment)
    ordered = np.sort(lam)
    ranks = np.arange(1.0, lam.size + 1.0)
    return {
        "mean_positive": float(lam[right].mean()),
        "mean_negative": float(lam[~right].mean()),
        "deviation": float(lam.std()),
        "effective": float(lam.sum() ** 2 / (lam.size * (lam**2).sum())),
        "gini": float(2 * (ranks * ordered).sum() / (lam.size * lam.sum()) - 1 - 1 / lam.size),
        "confident": float(np.mean(np.abs(lam - confident) <= NEAR * confident)),
        "mean_logit": apart * (1 / found.gamma[0] + 1 / found.gamma[1]) / 2,
    }


def proxy_agreement(first: Fit, second: Fit, tokens: Bool[np.ndarray, " token"]) -> Agreement:
    """Do two geometries tell the same tokens?

    Args:
        first: of one geometry.
        second: of another, on the same tokens.
        tokens: those compared, such as p < .9 with advantage.

    Raises:
        StatisticsError: fewer than three tokens, or alphas that do not vary.
    """
    alphas = [found.alpha[tokens] for found in (first, second)]
    if tokens.sum() < 3 or min(np.ptp(alpha) for alpha in alphas) == 0:
        raise StatisticsError(
            f"an agreement needs three tokens or more whose alphas vary; there are "
            f"{int(tokens.sum())}. Compare more tokens."
        )
    ranks = [rankdata(alpha) for alpha in alphas]
    top = [rank > (rank.size + 1) / 2 for rank in ranks]
    signs = [found.margin[tokens] > 0 for found in (first, second)]
    return Agreement(
        float(np.corrcoef(*ranks)[0, 1]),
        float((top[0] & top[1]).sum() / max(int(top[0].sum()), 1)),
        float(np.mean(signs[0] == signs[1])),
        int(tokens.sum()),
    )


def token_types(
    token_id: Int64[np.ndarray, " token"],
    coefficients: Float64[np.ndarray, " token"],
    advantage: Float64[np.ndarray, " token"],
    *,
    least: int = 5,
) -> dict[str, np.ndarray]:
    """Mean coefficient of each token type, and how much both sides share it.

    Args:
        token_id: of each token.
        coefficients: of a rule, such as lambda.
        advantage: of each token's response; tokens without are left out.
        least: smallest count of a type.

    Returns:
        token_id, count, mean, error (standard error of the mean), and shared: twice the smaller of
        its frequencies on the two sides over their sum, 1 for a type that both use alike. By mean.
    """
    own = advantage != 0
    names, number = np.unique(token_id[own], return_inverse=True)
    value, right = coefficients[own], advantage[own] > 0
    count = np.bincount(number, minlength=names.size)
    mean = np.bincount(number, value) / count
    square = np.bincount(number, (value - mean[number]) ** 2) / np.maximum(count - 1, 1)
    often = [
        np.bincount(number[side], minlength=names.size) / max(int(side.sum()), 1)
        for side in (right, ~right)
    ]
    columns = {
        "token_id": names,
        "count": count,
        "mean": mean,
        "error": np.sqrt(square / count),
        "shared": 2 * np.minimum(*often) / (often[0] + often[1]),
    }
    kept = np.flatnonzero(count >= least)
    order = kept[np.argsort(-mean[kept], kind="stable")]
    return {name: column[order] for name, column in columns.items()}
