"""Sets of figures: what each needs, how its panels are put on a page, what its caption says.

Reads  results of `stats.describe` by name (`triple`, `kind`, `balance`), and `points`, which
       `stats.points.shift_points` makes from `Study.tokens()`.
Gives  CATALOGUE; render (figures in memory); draw (PDF, PNG, CSV, captions, manifest).
Sign   as in `panels`.

A set refuses inputs that do not say by which policy they were scored, inputs of several stores or
policies, and results older than the probes they stand beside.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tokensense.checks import require_member
from tokensense.errors import FigureError
from tokensense.figures import captions, centers, credit, localization, panels, training
from tokensense.figures.density import TERMS, shift_density
from tokensense.figures.export import Manifest, write_set
from tokensense.figures.spec import FigureSpec, Inputs, Rendered, Span
from tokensense.figures.style import (
    Style,
    fit_square,
    freeze_layout,
    new_figure,
    replace_missing_glyphs,
    styled,
)

# More points than this in a panel hide one another: cells are drawn instead.
POINTS_SHOWN = 5_000
# From here on a third panel has room beside the ratios.
THREE_PANELS_FROM = 4.5
MAKERS = {
    "points": "finish the probes `opposed` and `placebo`, then take `stats.points.shift_points`",
    "triple": "run `tokensense analyze`",
    "kind": "run `tokensense analyze`",
    "balance": "run `tokensense analyze`",
    "rules": "run `tokensense credit`",
    "rules_by_kind": "run `tokensense credit`",
    "rule_agreement": "run `tokensense credit`",
    "centers": "run `tokensense centers`",
    "center_lambda": "run `tokensense centers`",
    "center_types": "run `tokensense centers`",
    "training": "run `tokensense train`, and name its folder with --run",
    "localization": "run `tokensense analyze` on responses whose first wrong token is known",
    "step_choice": "run `tokensense analyze` on responses whose first wrong step is labelled",
}
# What every input must agree on where it says it.
IDENTITY = (
    "store",
    "commit",
    "policy_digest",
    "tokenizer_digest",
    "template_digest",
    "sampled_by",
    "scored_by",
    "off_policy",
    "verdict_pairs",
    "placebo_families",
    "all_tokens",
)
REQUIRED = ("scored_by", "off_policy")


def render(
    name: str, inputs: Inputs, *, style: str = "neurips", span: Span = "column"
) -> dict[str, Rendered]:
    """Draw a set of figures in memory.

    Args:
        name: of the set, one of CATALOGUE.
        inputs: Datasets by name; those that the set does not need are passed over.
        style: one of `style.STYLES`.
        span: width of the page: of a column, or of the whole text.

    Returns:
        Figures by name, in the order of the set.

    Raises:
        SchemaError: no set or style has that name.
        FigureError: an input is missing, or the inputs do not belong together.
    """
    require_member("set", name, CATALOGUE)
    require_member("span", span, ("column", "page"))
    provenance_of(_needed(name, inputs))
    found = {}
    with styled(style) as page:
        width = page.column if span == "column" else page.page
        for figure_name, spec in drawable(name, inputs).items():
            one = spec.compose(inputs, page, width)
            found[figure_name] = one._replace(replaced=replace_missing_glyphs(one.figure))
            freeze_layout(one.figure)
    return found


def draw(
    set_name: str,
    inputs: Inputs,
    folder: Path,
    *,
    style: str = "neurips",
    span: Span = "column",
) -> Manifest:
    """Draw a set of figures and write PDF, PNG, CSV, captions.txt and manifest.json.

    Args:
        set_name: one of CATALOGUE.
        inputs: as for `render`.
        folder: made where it is missing.
        style: as for `render`.
        span: as for `render`.

    Returns:
        The manifest.

    Raises:
        SchemaError: no set or style has that name.
        FigureError: an input is missing, the inputs do not belong together, or the folder cannot be
            written.
    """
    rendered = render(set_name, inputs, style=style, span=span)
    provenance = provenance_of(_needed(set_name, inputs))
    with styled(style):
        return write_set(Path(folder), rendered, name=set_name, style=style, provenance=provenance)


def provenance_of(inputs: Inputs) -> dict[str, object]:
    """What all inputs say of their store and policies.

    Args:
        inputs: Datasets by name.

    Returns:
        The attributes of IDENTITY that are known; texts that hold JSON are decoded.

    Raises:
        FigureError: an input does not say who scored it, or two inputs differ.
    """
    found: dict[str, object] = {}
    origin: dict[str, str] = {}
    for name, dataset in inputs.items():
        missing = [key for key in REQUIRED if key not in dataset.attrs]
        if missing:
            raise FigureError(
                f"Figures need inputs with the attributes {list(REQUIRED)}; {name!r} lacks "
                f"{missing}. Take inputs from a store, not by hand."
            )
        attrs = _with_commit(dataset.attrs)
        for key in IDENTITY:
            if key not in attrs:
                continue
            value = _plain(key, attrs[key])
            if found.setdefault(key, value) != value:
                raise FigureError(
                    f"A set of figures needs one store, one policy and one state of its probes; "
                    f"{key} is {found[key]!r} in {origin[key]!r} and {value!r} in {name!r}. "
                    "Run `tokensense analyze` again and draw from one store."
                )
            origin.setdefault(key, name)
    return found


def _with_commit(attrs: Mapping[Any, Any]) -> dict[str, Any]:
    """Attributes with the commit of the code that wrote them, which a store keeps in its stamp."""
    found = {str(key): value for key, value in attrs.items()}
    git = json.loads(found.get("provenance", "{}")).get("git")
    if git and "commit" not in found:
        found["commit"] = git["commit"] + ("-dirty" if git["dirty"] else "")
    return found


def _plain(key: str, value: object) -> object:
    """An attribute as it was before a store made texts and numbers of it."""
    if key == "off_policy":
        return bool(value)
    if isinstance(value, str) and value[:1] in ("[", "{"):
        return json.loads(value)
    if isinstance(value, np.generic):
        return value.item()
    return list(value) if isinstance(value, tuple | np.ndarray) else value


def drawable(name: str, inputs: Inputs) -> dict[str, FigureSpec]:
    """The figures of a set that can be drawn; optional ones drop out where an input is missing.

    An input without rows, as token types of a small store, is missing too.

    Args:
        name: of the set, one of CATALOGUE.
        inputs: as for `render`.
    """
    return {
        figure: spec
        for figure, spec in CATALOGUE[name].items()
        if not spec.optional or all(_has_rows(inputs, need) for need in spec.needs)
    }


def _has_rows(inputs: Inputs, need: str) -> bool:
    """Is the input there, and is there anything in it?"""
    return need in inputs and all(size > 0 for size in inputs[need].sizes.values())


def _needed(name: str, inputs: Inputs) -> Inputs:
    """The inputs of the figures that are drawn."""
    specs = drawable(name, inputs) or CATALOGUE[name]
    needs = dict.fromkeys(need for spec in specs.values() for need in spec.needs)
    missing = [need for need in needs if need not in inputs]
    if missing:
        steps = "; ".join(dict.fromkeys(f"for {need!r} {MAKERS[need]}" for need in missing))
        raise FigureError(
            f"The set {name!r} needs {list(needs)}; {missing} are missing. To get them: {steps}."
        )
    return {need: inputs[need] for need in needs}


def _shift_scatter(inputs: Inputs, style: Style, width: float) -> Rendered:
    """z+ against z-, verdict beside placebo."""
    points, triple = inputs["points"], inputs["triple"]
    figure = new_figure(width, 0.5 * width + 0.7)
    axes = list(figure.subplots(1, 2))
    most = max(int((points["term"].values == term).sum()) for term in TERMS)
    dense = most * points.sizes["token"] > POINTS_SHOWN
    if dense:
        drawn = panels.draw_shift_density(axes, shift_density(points), triple=triple)
    else:
        drawn = panels.draw_shift_points(axes, points, triple=triple)
    fit_square(figure, axes)
    caption = captions.shift_scatter(points, drawn["statistics"], triple=triple, dense=dense)
    return Rendered(figure, drawn, caption, ())


def _shift_by_kind(inputs: Inputs, style: Style, width: float) -> Rendered:
    """How far each kind moves, raw and matched."""
    kind, balance = inputs["kind"], inputs["balance"]
    scales = ["log_ratio", "log_ratio_matched"]
    if width >= THREE_PANELS_FROM:
        scales.insert(0, "mean")
    # A row must hold two dots and a line of type.
    row = 2.6 * style.small / 72
    figure = new_figure(width, 1.05 + row * max(2, kind.sizes["kind"]))
    axes = list(figure.subplots(1, len(scales)))
    drawn = panels.draw_shift_by_kind(axes, kind, balance=balance, scales=scales)
    caption = captions.shift_by_kind(drawn["kinds"], kind=kind)
    return Rendered(figure, drawn, caption, ())


def _triples(inputs: Inputs, style: Style, width: float) -> Rendered:
    """Every main statistic as verdict, placebo and difference."""
    triple = inputs["triple"]
    rows = len(panels.TRIPLE_STATISTICS)
    figure = new_figure(width, 0.45 + 6.0 * style.size / 72 * rows * 0.78)
    axes = [list(pair) for pair in figure.subplots(rows, 2)]
    drawn = panels.draw_triples(axes, triple)
    caption = captions.triples(drawn["triples"], triple=triple)
    return Rendered(figure, drawn, caption, ())


CATALOGUE: dict[str, dict[str, FigureSpec]] = {
    "shifts": {
        "shift_scatter": FigureSpec(("points", "triple"), _shift_scatter),
        "shift_by_kind": FigureSpec(("kind", "balance"), _shift_by_kind),
        "triples": FigureSpec(("triple",), _triples),
    },
    "credit": credit.FIGURES,
    "centers": centers.FIGURES,
    "localization": localization.FIGURES,
    "training": training.FIGURES,
}
