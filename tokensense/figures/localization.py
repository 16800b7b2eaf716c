"""The set `localization`: which scores find the first wrong token, and the first wrong step.

Reads  results `localization` and `step_choice` of `tokensense analyze`.
Gives  FIGURES: tokens (AUROC raw and at equal surprisal), top (precision, hits), steps.
Sign   AUROC above .5: the first wrong token (or step) scores higher than the others.

Scores under verdicts stand beside the same scores under irrelevant words; a rule's weight is a
score like any other. What `random` and `constant` get is what chance gets.
"""

from collections.abc import Sequence

import xarray as xr

from tokensense.figures.captions import limits
from tokensense.figures.density import PLACEBO
from tokensense.figures.marks import number_text, summary
from tokensense.figures.rows import ALONE, Panel, Row, draw_rows, entries, row_height
from tokensense.figures.spec import FigureSpec, Inputs, Rendered
from tokensense.figures.style import Style, new_figure
from tokensense.schema import VERDICT

# Score -> label and group; the verdict's have a placebo of the name with `placebo_` before it.
LABELS = {
    "sensitivity": ("sensitivity", 0),
    "absolute_contrast": ("|contrast|", 0),
    "signed_contrast": ("contrast, signed", 0),
    "model_with": ("model with shifts", 0),
    "surprisal": ("surprisal", 1),
    "entropy": ("entropy", 1),
    "onehot_distance": ("distance from p", 1),
    "square_sum": ("sum of p²", 1),
    "position": ("position", 1),
    "length": ("length", 1),
    "kind": ("kind of token", 1),
    "model_without": ("model without shifts", 1),
    "random": ("random", 1),
    "constant": ("all alike", 1),
}
WEIGHT, RULES = "weight_", 2
PLACEBO_OF = "placebo_"
UNORDERED = "The signed contrast has no placebo: two irrelevant words have no right order."
# From here on a third panel has room.
THREE_PANELS_FROM = 4.5
TOKEN_PANELS = (
    Panel("auroc", "AUROC", 0.5),
    Panel("auroc_at_equal_surprisal", "AUROC at\nequal surprisal", 0.5),
    Panel("auroc_at_equal_surprisal_and_kind", "AUROC at equal\nsurprisal and kind", 0.5),
)
TOP_PANELS = (
    Panel("average_precision", "average\nprecision"),
    Panel("hit_at_1", "hit at 1\n(share of responses)"),
)
STEP_PANELS = (
    Panel("auroc", "AUROC", 0.5),
    Panel("auroc_at_equal_surprisal", "AUROC at\nequal surprisal", 0.5),
    Panel("hit_at_1", "hit at 1 (share\nof responses)"),
)


def score_rows(names: Sequence[str]) -> list[Row]:
    """Rows of the scores there are: verdict beside placebo, the others alone, rules last.

    Args:
        names: of the result; those that no row is for (secondary aggregates) are passed over.
    """
    found = []
    for name, (label, group) in LABELS.items():
        if name in names:
            terms = {ALONE if group else VERDICT: name}
            if PLACEBO_OF + name in names:
                terms[PLACEBO] = PLACEBO_OF + name
            found.append(Row(label, terms, group))
    given = [name for name in names if name.startswith(WEIGHT)]
    rules = [name for name in given if not name.endswith(("_max", "_top_3"))]
    for name in rules:
        # A rule's own control, drawn from irrelevant words, stands in the rule's row.
        if name.removesuffix("_placebo") in rules and name.endswith("_placebo"):
            continue
        control = f"{name}_placebo"
        paired = {VERDICT: name, PLACEBO: control} if control in rules else {ALONE: name}
        found.append(Row(f"weight, {name.removeprefix(WEIGHT)}", paired, RULES))
    return found


def _composed(
    result: xr.Dataset, panels: Sequence[Panel], style: Style, width: float, *, note: str
) -> tuple[Rendered, xr.Dataset]:
    """Rows of scores, a statistic a panel; the caption is still to come."""
    rows = score_rows(result["score"].values.astype(str).tolist())
    shown = entries(summary(result), rows, panels, dim="score")
    figure = new_figure(width, 1.0 + row_height(style.small) * (len(rows) + 1.2))
    axes = list(figure.subplots(1, len(panels)))
    draw_rows(axes, shown, panels, note=note)
    return Rendered(figure, {"scores": shown}, ""), shown


def _tokens(inputs: Inputs, style: Style, width: float) -> Rendered:
    """AUROC of every score, raw and at equal surprisal."""
    result = inputs["localization"]
    panels = TOKEN_PANELS if width >= THREE_PANELS_FROM else TOKEN_PANELS[:2]
    found, shown = _composed(result, panels, style, width, note=_basis(result))
    names = [panel.statistic for panel in panels]
    compared = dict(zip(result["statistic"].values.tolist(), result["n_compared"].values.tolist(),
                        strict=True))  # fmt: skip
    equal = [
        f"Of the wrong tokens {compared[name]:,} have others {words} to be compared with."
        for name, words in (
            ("auroc_at_equal_surprisal", "of equal surprisal"),
            ("auroc_at_equal_surprisal_and_kind", "of equal surprisal and kind"),
        )
        if name in names
    ]
    parts = [
        "How well scores find the first wrong token of wrong responses: AUROC against all other "
        "tokens of these responses; against those of the same decile of the wrong tokens' "
        "surprisal, where rarity no longer helps. Verdict beside the same score under "
        "irrelevant words. Line: chance.",
        UNORDERED,
        _told(shown, "auroc_at_equal_surprisal"),
        f"{_basis(result)}.",
        *equal,
    ]
    return found._replace(caption=" ".join([*parts, *limits(result, shown)]))


def _top(inputs: Inputs, style: Style, width: float) -> Rendered:
    """Average precision and hits."""
    result = inputs["localization"]
    found, shown = _composed(result, TOP_PANELS, style, width, note=_basis(result))
    parts = [
        "Is the first wrong token among the highest of a score? Average precision, tokens of all "
        "wrong responses pooled; chance that the highest token of a response is its first wrong "
        "one. The row `random` is chance.",
        UNORDERED,
        _told(shown, "hit_at_1"),
        f"{_basis(result)}.",
    ]
    return found._replace(caption=" ".join([*parts, *limits(result, shown)]))


def _steps(inputs: Inputs, style: Style, width: float) -> Rendered:
    """How well scores pick the first wrong step of their response."""
    result = inputs["step_choice"]
    panels = STEP_PANELS if width >= THREE_PANELS_FROM else STEP_PANELS[1:]
    attrs = result.attrs
    note = (
        f"n = {int(attrs['n_steps']):,} steps, {int(attrs['n_tokens']):,} tokens, "
        f"{int(attrs['n_rollouts']):,} wrong responses, {_texts(result)} problems"
    )
    found, shown = _composed(result, panels, style, width, note=note)
    parts = [
        "How well scores, averaged over the tokens of a step, pick the first wrong step out of "
        "all steps of a wrong response. Models are cross-fitted over problem texts: position, "
        "length, surprisal, entropy and sum of p², without and with shifts. Line: chance; for "
        "hits the row `all alike` is chance.",
        UNORDERED,
        _told(shown, "auroc_at_equal_surprisal"),
        f"{note}.",
        "Intervals of each score by itself, not of all together.",
    ]
    return found._replace(caption=" ".join([*parts, *limits(result, shown)]))


def _told(shown: xr.Dataset, statistic: str) -> str:
    """Numbers of the first rows in words, verdict and placebo."""
    parts = []
    for row in shown["row"].values[:3]:
        one = shown.sel(statistic=statistic, row=row)
        terms = [
            f"{term} {number_text(one.sel(term=term))}"
            for term in one["term"].values
            if bool(one["there"].sel(term=term))
        ]
        parts.append(f"{row} {', '.join(terms)}")
    name = statistic.replace("_", " ").replace("auroc", "AUROC")
    return f"{name[0].upper()}{name[1:]}: {'; '.join(parts)}."


def _basis(result: xr.Dataset) -> str:
    attrs = result.attrs
    return (
        f"n = {int(attrs['n_tokens']):,} tokens, {int(attrs['n_rollouts']):,} wrong responses, "
        f"{_texts(result)} problems"
    )


def _texts(result: xr.Dataset) -> str:
    return f"{int(result['n_clusters'].max()):,}"


FIGURES = {
    "localization_tokens": FigureSpec(("localization",), _tokens, optional=True),
    "localization_top": FigureSpec(("localization",), _top, optional=True),
    "localization_steps": FigureSpec(("step_choice",), _steps, optional=True),
}
