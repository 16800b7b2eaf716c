"""The set `credit`: on which kinds a rule puts its mass, on how few tokens, and like which other.

Reads  `rules`, `rules_by_kind` and `rule_agreement` of `stats.credited`.
Gives  FIGURES: by kind (matrix), concentration (rows), agreement (matrix).
Sign   ratio above 1: the kind has more of the credit than of the tokens; agreement above 0: both
       pick the same tokens, by credit along the advantage's sign.

Rules stand in one order in all three, by how far they turn the update from that of uniform credit.
The placebo stands beside the verdict: a rule's control that reads irrelevant words in the rule's
own row, and sizes of contrasts under verdict and placebo among the scores that rules agree with.
"""

import math

import numpy as np
import xarray as xr

from tokensense.figures.captions import limits
from tokensense.figures.density import PLACEBO
from tokensense.figures.marks import number_text, summary
from tokensense.figures.matrix import draw_key, draw_matrix, matrix_size
from tokensense.figures.rows import ALONE, Panel, Row, draw_rows, entries, row_height
from tokensense.figures.spec import FigureSpec, Inputs, Rendered
from tokensense.figures.style import Style, new_figure, text_width
from tokensense.schema import VERDICT

CONTROL = "_placebo"
PANELS = (
    Panel("effective", "effective tokens\n(share)", 1.0),
    Panel("gini", "Gini", 0.0),
    Panel("rotation", "rotation\n(degrees)", 0.0),
)
# Deepest colors: four times or a quarter of a kind's share; ranks fully alike.
RATIO_LIMIT = math.log(4.0)


def rule_order(rules: xr.Dataset) -> list[str]:
    """Names of the rules by rotation, those without any last; a control follows its rule.

    Args:
        rules: result `rules`.
    """
    turned = rules["estimate"].sel(statistic="rotation").values
    names = rules["rule"].values.astype(str).tolist()
    sizes: list[float] = np.where(np.isfinite(turned), turned, np.inf).tolist()
    angle = dict(zip(names, sizes, strict=True))

    def place(name: str) -> tuple[float, str, bool]:
        own = name.removesuffix(CONTROL)
        return angle[own if own in angle else name], own, name != own

    return sorted(names, key=place)


def basis(rules: xr.Dataset) -> str:
    """What the numbers of the rules rest on.

    Args:
        rules: result `rules`.
    """
    return (
        f"n = {int(rules['n_tokens']):,} tokens, {int(rules['n_rollouts'].max()):,} responses, "
        f"{int(rules['n_clusters'].max()):,} problems"
    )


def _label(name: str) -> str:
    return name.replace("_", " ")


def _by_kind(inputs: Inputs, style: Style, width: float) -> Rendered:
    """Share of credit over share of tokens, rules by kinds."""
    result = inputs["rules_by_kind"]
    names = rule_order(inputs["rules"])
    there = result["n_tokens"].values > 0
    shown = summary(result.isel(kind=np.flatnonzero(there)).sel(rule=names))
    kinds = shown["kind"].values.astype(str)
    counts = [f"{_label(kind)} ({count:,})" for kind, count in zip(
        kinds, np.atleast_1d(shown["n_tokens"].values), strict=True)]  # fmt: skip
    cell = _cell_width(names, len(kinds), style, width)
    tall = _label_height(counts, style)
    figure = new_figure(width, 0.55 + tall + matrix_size(len(names)))
    axes = figure.subplots()
    draw_matrix(
        axes,
        shown.transpose("rule", "kind", ...),
        limit=RATIO_LIMIT,
        text=_ratio_text,
        labels=([_label(name) for name in names], counts),
        width=cell,
    )
    draw_key(
        axes,
        low="less credit than tokens (÷4)",
        high="more (×4)",
        neither="interval holds 1",
        note=basis(inputs["rules"]),
    )
    parts = [
        "Share of the credit on each kind of token over the kind's share of the tokens (ratio; "
        "rules in the order of how far they turn the update). Colored where the interval leaves "
        "out 1, grey numbers where it does not; in brackets: tokens of the kind. Uniform "
        "credit is not 1 throughout, because responses differ in the size of their advantage.",
        f"{basis(inputs['rules'])}.",
        *_empty(shown, "kind"),
        "Intervals are in the CSV file and the table.",
    ]
    return Rendered(figure, {"kinds": _as_ratio(shown)}, " ".join([*parts, *limits(result, shown)]))


def _as_ratio(shown: xr.Dataset) -> xr.Dataset:
    """Log ratios as the ratios that are written."""
    return shown.assign({name: np.exp(shown[name]) for name in ("estimate", "low", "high")})


def _ratio_text(value: float) -> str:
    ratio = math.exp(value)
    return f"{ratio:.2f}" if ratio < 9.995 else f"{ratio:.0f}"


def _rank_text(value: float) -> str:
    shown = f"{value:.2f}"
    return (shown.removeprefix("-") if float(shown) == 0 else shown).replace("-", "−")


def _cell_width(names: list[str], columns: int, style: Style, width: float) -> float:
    """Width of a cell beside the row labels, inches; a little less than it will have."""
    widest = max(text_width(_label(name), style.small) for name in names)
    return (width - widest - 0.25) / columns


def _label_height(names: list[str], style: Style) -> float:
    """Height of column labels that stand on end, inches."""
    return max(text_width(name, style.small) for name in names) + 0.15


def _empty(shown: xr.Dataset, column: str) -> list[str]:
    """What stays empty, in words."""
    lost, rules = shown["estimate"].isnull(), shown["rule"].values
    names = [
        f"{_label(str(rule))} ({', '.join(_label(str(c)) for c in shown[column].values[row])})"
        for rule, row in zip(rules, lost.transpose("rule", column).values, strict=True)
        if row.any()
    ]
    return [f"Empty, because there is no credit at all: {'; '.join(names)}."] if names else []


def _concentration(inputs: Inputs, style: Style, width: float) -> Rendered:
    """Effective tokens, Gini, rotation and correlation with length, a row a rule."""
    result = inputs["rules"]
    names = rule_order(result)
    rows = []
    for name in names:
        if name.endswith(CONTROL) and name.removesuffix(CONTROL) in names:
            continue
        paired = {VERDICT: name, PLACEBO: name + CONTROL}
        rows.append(Row(_label(name), paired if name + CONTROL in names else {ALONE: name}))
    shown = entries(summary(result), rows, PANELS, dim="rule")
    figure = new_figure(width, 1.0 + row_height(style.small) * (len(rows) + 0.6))
    axes = list(figure.subplots(1, len(PANELS)))
    draw_rows(axes, shown, PANELS, note=basis(result))
    numbers = [
        f"{_label(name)} {number_text(summary(result).sel(rule=name, statistic='effective'))}"
        for name in names
    ]
    parts = [
        "How much each rule does. Effective tokens (Σ|c|)² / Σc² as a share of the response's and "
        "Gini coefficient of the sizes of credit, within responses, mean over responses; angle "
        "between the update and that of uniform credit, gradients of tokens taken as orthogonal"
        ". Lines: uniform credit. A rule's placebo reads irrelevant words in its verdicts' place.",
        f"Effective tokens: {'; '.join(numbers)}.",
        f"{basis(result)}.",
    ]
    return Rendered(figure, {"rules": shown}, " ".join([*parts, *limits(result, shown)]))


def _agreement(inputs: Inputs, style: Style, width: float) -> Rendered:
    """Rank agreement of rules with one another and with scores that are no rules."""
    result, rules = inputs["rule_agreement"], inputs["rules"]
    every = summary(result)
    varies = {
        str(name): bool(np.isfinite(every["estimate"].sel(score=name).values).any())
        for name in every["score"].values
    }
    names = [name for name in rule_order(rules) if varies[name]]
    others = [name for name in map(str, every["score"].values[~result["is_rule"].values])
              if varies[name]]  # fmt: skip
    columns = [*names, *others, "length"] if names else others
    shown = _with_length(every, rules, names, [*names, *others])
    cell = _cell_width(names or others, len(columns), style, width)
    labels = [_label(name) for name in columns]
    tall = _label_height(labels, style)
    figure = new_figure(width, 0.55 + tall + matrix_size(max(2, len(names))))
    axes = figure.subplots()
    draw_matrix(
        axes,
        shown,
        limit=1.0,
        text=_rank_text,
        labels=([_label(name) for name in names], labels),
        width=cell,
    )
    axes.axvline(len(names) - 0.5, color="black", linewidth=0.6)
    draw_key(
        axes,
        low="pick opposite tokens (−1)",
        high="the same (1)",
        neither="interval holds 0",
        note=basis(rules),
    )
    still = [_label(name) for name in rule_order(rules) if not varies[name]]
    parts = [
        "Do two rules pick the same tokens? Spearman's correlation of credit (along the "
        "advantage's sign) within responses, mean over responses; right of the line: with what is "
        "no rule, sizes of contrasts under verdicts and under irrelevant words among them. "
        "`length`: over responses, with mean credit a token.",
        *([f"Without ranks, because all tokens of a response get the same: {', '.join(still)}."]
          if still else []),
        f"{basis(rules)}.",
        "Intervals are in the CSV file and the table.",
    ]  # fmt: skip
    return Rendered(figure, {"agreement": shown}, " ".join([*parts, *limits(result, shown)]))


def _with_length(
    every: xr.Dataset, rules: xr.Dataset, names: list[str], columns: list[str]
) -> xr.Dataset:
    """Rows of the rules, columns of all scores and of length."""
    kept = ["estimate", "low", "high", "method", "n_clusters"]
    square = every[kept].drop_vars("is_rule").sel(score=names, other=columns)
    length = summary(rules)[kept].sel(statistic="with_length", rule=names)
    beside = length.drop_vars([n for n in length.coords if n != "rule"]).rename(rule="score")
    both = xr.concat([square, beside.expand_dims(other=["length"])], dim="other",
                     combine_attrs="override")  # fmt: skip
    return both.rename(score="rule").transpose("rule", "other")


FIGURES = {
    "credit_by_kind": FigureSpec(("rules", "rules_by_kind"), _by_kind),
    "credit_concentration": FigureSpec(("rules",), _concentration),
    "credit_agreement": FigureSpec(("rules", "rule_agreement"), _agreement),
}
