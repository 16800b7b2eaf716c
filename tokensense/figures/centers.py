"""The set `centers`: how alike DelTA's two centers are, why, and which tokens it weighs up.

Reads  `centers`, `center_lambda` and `center_types` of `stats.center_results`.
Gives  FIGURES: centers (rows), lambda (distribution), token types (rows).
Sign   cosine above 0: right and wrong responses pull the same way; lambda above 1: weighed up.

The placebo of all tokens are advantages dealt out anew within problems; that of leaving out a kind
is leaving out as many random tokens of the same responses.
"""

import numpy as np
import xarray as xr
from matplotlib.ticker import FuncFormatter, MaxNLocator

from tokensense.figures.captions import limits
from tokensense.figures.density import PLACEBO
from tokensense.figures.marks import number_text, summary
from tokensense.figures.rows import ALONE, Panel, Row, draw_rows, entries, row_height
from tokensense.figures.spec import FigureSpec, Inputs, Rendered
from tokensense.figures.style import LOOKS, NEUTRAL, Style, new_figure, small_type, tick_text
from tokensense.schema import VERDICT

ALL, SHUFFLED, WITHOUT, RANDOM = "all tokens", "advantages shuffled", "without", "as many random as"
NAMES = {VERDICT: "observed"}
PANELS = (
    Panel("cosine", "cosine of\nthe centers"),
    Panel("contrast", "contrast\n(share)"),
    Panel("cancellation", "left of the\nupdate (share)"),
)


def _basis(result: xr.Dataset) -> str:
    attrs = result.attrs
    return (
        f"n = {int(attrs['n_tokens']):,} tokens, {int(attrs['n_rollouts']):,} responses, "
        f"{int(result['n_clusters'].max()):,} problems"
    )


def _centers(inputs: Inputs, style: Style, width: float) -> Rendered:
    """Cosine, contrast and cancellation, without each kind of token too."""
    result = inputs["centers"]
    names = result["score"].values.astype(str).tolist()
    rows = [Row(ALL, {VERDICT: ALL, PLACEBO: SHUFFLED})]
    for name in names:
        kind = name.removeprefix(f"{WITHOUT} ")
        if kind != name:
            terms = {VERDICT: name, PLACEBO: f"{RANDOM} {kind}"}
            rows.append(Row(f"without {kind.replace('_', ' ')}", terms, 1))
    shown = entries(summary(result), rows, PANELS, dim="score")
    figure = new_figure(width, 1.0 + row_height(style.small) * (len(rows) + 0.6))
    axes = list(figure.subplots(1, len(PANELS)))
    draw_rows(axes, shown, PANELS, note=_basis(result), names=NAMES)
    mass = [float(result[f"mass_{side}"].sel(score=ALL)) for side in ("positive", "negative")]
    tilt = number_text(summary(result).sel(score=ALL, statistic="tilt"))
    parts = [
        "The two centers of DelTA: cosine of μ+ and μ−, contrast ‖μ+ − μ−‖ / (‖μ+‖ + ‖μ−‖), and "
        "what is left of the update when both sides are subtracted. Placebo: in the first row "
        "advantages dealt out anew within problems, in the others as many random tokens of the "
        "same responses left out.",
        "Noise lengthens differences of means, in resamples more than in the sample: intervals of "
        "contrast and of what is left lie too high, under the placebo too.",
        f"Masses M+ = {mass[0]:,.0f}, M− = {mass[1]:,.0f} (units of the advantage), "
        f"M+ / M− = {tilt}.",
        f"{_basis(result)}.",
    ]
    return Rendered(figure, {"centers": shown}, " ".join([*parts, *limits(result, shown)]))


def _lambda(inputs: Inputs, style: Style, width: float) -> Rendered:
    """Distribution of lambda on both sides."""
    result, about = inputs["center_lambda"], inputs["centers"]
    figure = new_figure(width, 0.45 * width + 0.4)
    axes = figure.subplots()
    edges = np.append(result["low"].values, result["high"].values[-1])
    for side, term, dash in (("right", VERDICT, "-"), ("wrong", PLACEBO, (0, (4, 2)))):
        axes.stairs(
            result["share"].sel(side=side).values,
            edges,
            color=LOOKS[term].color,
            linestyle=dash,
            linewidth=1.0,
            label=f"tokens of {side} responses ({int(result['n_tokens'].sel(side=side)):,})",
        )
    axes.axvline(1.0, color=NEUTRAL, linewidth=0.6)
    axes.set_yscale("log")
    axes.set_xlabel("λ of DelTA, before the division by its mean (no unit)")
    axes.set_ylabel("share of the side's tokens")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(tick_text))
    axes.figure.legend(loc="outside upper center", ncols=1, title=_basis(about),
                       title_fontsize=small_type(), borderaxespad=0.2)  # fmt: skip
    attrs = result.attrs
    parts = [
        "Distribution of λ over the tokens of responses with an advantage; log scale. "
        f"Mean {attrs['lambda_mean_positive']:.3f} on the right side and "
        f"{attrs['lambda_mean_negative']:.3f} on the wrong side, standard deviation "
        f"{attrs['lambda_deviation']:.3f}; {attrs['lambda_confident']:.0%} of the tokens lie "
        "within 1 % of the value that a token without gradient has.",
        f"{_basis(about)}.",
        "A distribution, not an estimate: no interval.",
    ]
    ends = limits(about, summary(about))
    return Rendered(figure, {"lambda": result}, " ".join([*parts, *ends[-2:]]))


def _types(inputs: Inputs, style: Style, width: float) -> Rendered:
    """Token types with the largest and the smallest mean lambda."""
    result = inputs["center_types"]
    # The result of one statistic, so that the rows of `rows` can draw it.
    whole = summary(result).expand_dims(statistic=["lambda"])
    shares = [f"{float(s):.0%}" for s in result["shared"].values]
    count = result["n_tokens"].values
    words = result["text"].values.astype(str) if "text" in result else result["type"].values
    rows = [
        Row(f"{word} ({n:,}; {share})", {ALONE: str(name)})
        for word, n, share, name in zip(words, count, shares, result["type"].values, strict=True)
    ]
    panels = (Panel("lambda", "mean λ (no unit)", 1.0),)
    shown = entries(whole, rows, panels, dim="type")
    figure = new_figure(width, 0.95 + row_height(style.small) * (len(rows) + 0.6))
    note, names = _basis(inputs["centers"]), {ALONE: "mean over tokens of the type"}
    draw_rows([figure.subplots()], shown, panels, note=note, names=names)
    parts = [
        "Token types with the largest and the smallest mean λ, of those that occur 20 times or "
        "more; in brackets: tokens, and how far both sides use the type alike (100 %: equally "
        "often). The types are chosen by the numbers shown, so their extremes are flattered.",
        f"{_basis(inputs['centers'])}.",
    ]
    return Rendered(figure, {"types": shown}, " ".join([*parts, *limits(result, shown)]))


FIGURES = {
    "centers": FigureSpec(("centers",), _centers),
    "center_lambda": FigureSpec(("centers", "center_lambda"), _lambda),
    "center_types": FigureSpec(("centers", "center_types"), _types, optional=True),
}
