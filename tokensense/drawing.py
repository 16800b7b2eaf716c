"""Figures of a store: what each set needs, taken from its nodes, and drawn.

Reads  an Archive: rollouts, probes, `/stats`, `/credit`, `/training`; folders of training runs.
Gives  draw_sets, which `Study.figures` is; keep_run, which brings a run into a store.
Sign   as in `figures.panels`.

What a set needs and no node holds (points of the shift panels, numbers of the rules) is computed
here, with seeds of its own, so that the same store gives the same bytes.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from tokensense.checks import require_member
from tokensense.errors import FigureError, InputError, StatisticsError, StoreError
from tokensense.figures import CATALOGUE, draw
from tokensense.figures.export import MANIFEST, write_files
from tokensense.figures.sets import provenance_of
from tokensense.flat import flat_tokens
from tokensense.stats.credited import credited
from tokensense.stats.points import shift_points
from tokensense.stats.runs import run_dataset, side_by_side
from tokensense.store.archive import Archive
from tokensense.store.inventory import names_in

ALL = "all"


def draw_sets(archive: Archive, out: Path, *, which: str, style: str) -> dict[str, Any]:
    """Draw a set of figures of a store, or all that it has the data for.

    Args:
        archive: of the study.
        out: folder; of `all`, each set gets a folder in it.
        which: name of a set, or `all`.
        style: of the figures.

    Returns:
        The manifest; of `all`: `sets` (manifests by name) and `not_drawn` (set or figure -> what
        is missing and which command makes it).

    Raises:
        SchemaError: no set or style has that name.
        FigureError: what the set needs is not in the store; of `all`, of every set.
        StatisticsError: there is no verdict pair, or no placebo pair to put beside it.
        StoreError: there is no store.
    """
    require_member("set", which, (*CATALOGUE, ALL))
    if which != ALL:
        return dict(draw(which, inputs_of(archive, which), out, style=style))
    drawn, lost = {}, {}
    for name in CATALOGUE:
        try:
            drawn[name] = dict(draw(name, inputs_of(archive, name), out / name, style=style))
        except (FigureError, StatisticsError, StoreError) as reason:
            lost[name] = str(reason)
    if not drawn:
        raise FigureError(
            f"figures need the results of a store; {archive.path} has none that a set can draw. "
            f"{' '.join(lost.values())}"
        )
    manifest = {"set": ALL, "style": style, "sets": drawn, "not_drawn": lost}
    text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
    write_files(out, {MANIFEST: text.encode()})
    return manifest


def inputs_of(archive: Archive, which: str) -> dict[str, xr.Dataset]:
    """Datasets that a set can draw, by name; those that the store does not hold are left out.

    Args:
        archive: of the study.
        which: name of a set.

    Raises:
        FigureError: rules or runs do not belong together.
        StatisticsError: as `draw_sets`.
        StoreError: as `draw_sets`.
    """
    found = {name: archive.read(f"/stats/{name}") for name in names_in(archive, "stats")}
    if which == "shifts":
        found["points"] = shift_points(_tokens(archive))
    elif which == "credit" and (names := names_in(archive, "credit")):
        credit = _credit(archive, names)
        numbers = credited(_tokens(archive), credit)
        found |= {name: result.assign_attrs(credit.attrs) for name, result in numbers.items()}
    elif which == "training" and (runs := names_in(archive, "training")):
        nodes = {run: archive.read(f"/training/{run}") for run in runs}
        found["training"] = side_by_side(nodes).assign_attrs(_shared(nodes))
    return found


def _tokens(archive: Archive) -> xr.Dataset:
    """The flat view of all finished probes."""
    names = names_in(archive, "probes")
    nodes = {name: archive.read(f"/probes/{name}") for name in names}
    return flat_tokens(archive.rollouts(), nodes)


def _credit(archive: Archive, names: Sequence[str]) -> xr.Dataset:
    """Credit of all rules side by side, with the advantage, which must be one."""
    nodes = {name: archive.read(f"/credit/{name}") for name in names}
    first = nodes[names[0]]
    for name, node in nodes.items():
        same = np.array_equal(node["advantage"], first["advantage"], equal_nan=True)
        if not same:
            raise FigureError(
                f"figures of credit need one advantage for all rules; {name!r} has "
                f"{node.attrs.get('advantage')!r} and {names[0]!r} "
                f"{first.attrs.get('advantage')!r}. Run `tokensense credit` for all at once."
            )
    credit = np.stack([node["credit"].values for node in nodes.values()])
    return xr.Dataset(
        {"credit": (("rule", "token"), credit), "advantage": first["advantage"]},
        coords={
            "rule": list(names),
            "grade": ("rule", [node.attrs.get("grade", "") for node in nodes.values()]),
        },
        attrs=_shared(nodes),
    )


def _shared(nodes: Mapping[str, xr.Dataset]) -> dict[str, Any]:
    """Who scored, and the stamp of the code; nodes that differ in it are refused."""
    provenance_of(nodes)
    kept = ("scored_by", "sampled_by", "off_policy", "provenance")
    first = next(iter(nodes.values())).attrs
    return {name: first[name] for name in kept if name in first}


def keep_run(archive: Archive, folder: str | Path) -> str:
    """Bring a training run into a store as `/training/<name of its folder>`.

    Args:
        archive: to be written.
        folder: that `tokensense train` wrote.

    Returns:
        The run's name.

    Raises:
        InputError: the folder holds no run.
        StatisticsError: the run has done nothing yet.
        StoreError: the store cannot be written.
    """
    folder = Path(folder)
    states = sorted(folder.glob("step-*/state.json"))
    if not states:
        raise InputError(
            f"a training run needs a folder with a checkpoint, step-*/state.json; {folder} has "
            "none. Name the folder that `tokensense train` wrote, after its first checkpoint."
        )
    state = json.loads(states[-1].read_text("utf-8"))
    config = state["config"]
    attrs = {
        "scored_by": state["name"],
        "policy_digest": state["policy"],
        "task": state["task"],
        "rule": config["rule"],
        "seed": config["seed"],
        "config": json.dumps(config, sort_keys=True),
    }
    name = folder.resolve().name
    with archive:
        archive.write_node(f"/training/{name}", run_dataset(state["records"], attrs=attrs))
    return name
