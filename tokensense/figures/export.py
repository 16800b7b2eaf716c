"""Finished figures as files: PDF, PNG, CSV, LaTeX, captions and a manifest with digests.

Reads  Rendered figures: a matplotlib Figure, the Datasets it shows, its caption.
Gives  csv_bytes; write_set, which returns the manifest it wrote.
Sign   none of its own: numbers are written as they are drawn.

Everything is made in memory first and each file is renamed into place, the manifest last: a failure
before that leaves a folder as it was, and a digest in a manifest is that of a whole file. No time
goes into a file, so that the same store gives the same bytes.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import TypedDict

import matplotlib
import xarray as xr

from tokensense.errors import FigureError
from tokensense.figures.spec import Rendered
from tokensense.figures.style import saved_bytes
from tokensense.figures.tables import NUMBERS, has_numbers, numbers_bytes, table_bytes

MANIFEST = "manifest.json"
CAPTIONS = "captions.txt"


class FileEntry(TypedDict):
    """One file of a figure: digest of its content, and its size in bytes."""

    sha256: str
    bytes: int


class FigureEntry(TypedDict):
    """One figure of a set: caption draft, page in inches, replaced characters, files by name."""

    caption: str
    width: float
    height: float
    replaced_glyphs: list[str]
    files: dict[str, FileEntry]


class Manifest(TypedDict):
    """What was drawn, in which style, from what, and with which versions."""

    set: str
    style: str
    provenance: dict[str, object]
    versions: dict[str, str]
    figures: dict[str, FigureEntry]


def csv_bytes(part: xr.Dataset) -> bytes:
    """A Dataset as a table: one row an entry of its dims, one column a coordinate or variable.

    Numbers have all their digits, so that reading them back gives what was drawn. Rows without any
    value are left out: they were not drawn.

    Args:
        part: variables over the same dims, or over some of them (repeated then).
    """
    # An order of our own: the frame's follows the variables', and a reader looks for labels first.
    frame = part.to_dataframe(dim_order=[str(dim) for dim in part.sizes]).reset_index()
    labels = [str(name) for name in (*part.sizes, *part.coords) if name in frame]
    values = [str(name) for name in part.data_vars]
    frame = frame[list(dict.fromkeys([*labels, *values]))].dropna(subset=values, how="all")
    return str(frame.to_csv(index=False, lineterminator="\n")).encode()


def write_set(
    folder: Path,
    rendered: Mapping[str, Rendered],
    *,
    name: str,
    style: str,
    provenance: Mapping[str, object],
) -> Manifest:
    """Write a set of figures; call it inside `style.styled`.

    Args:
        folder: made where it is missing; files of an earlier set of the same names are replaced.
        rendered: figures by name.
        name: of the set.
        style: it was drawn in.
        provenance: of the store; goes into the manifest.

    Returns:
        The manifest, as it lies in `folder`.

    Raises:
        FigureError: the folder cannot be written.
    """
    manifest: Manifest = {
        "set": name,
        "style": style,
        "provenance": dict(provenance),
        "versions": {"tokensense": version("tokensense"), "matplotlib": matplotlib.__version__},
        "figures": {},
    }
    contents: dict[str, bytes] = {}
    for figure_name, one in rendered.items():
        files = _files(figure_name, one)
        contents |= files
        width, height = one.figure.get_size_inches()
        manifest["figures"][figure_name] = {
            "caption": one.caption,
            "width": round(float(width), 4),
            "height": round(float(height), 4),
            "replaced_glyphs": list(one.replaced),
            "files": {
                file: {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
                for file, content in files.items()
            },
        }
    contents[NUMBERS] = numbers_bytes(rendered, commit=str(provenance.get("commit", "")))
    captions = [f"{figure_name}\n{one.caption}\n" for figure_name, one in rendered.items()]
    contents[CAPTIONS] = "\n".join(captions).encode()
    contents[MANIFEST] = (json.dumps(manifest, indent=1, ensure_ascii=False) + "\n").encode()
    write_files(folder, contents)
    return manifest


def _files(name: str, one: Rendered) -> dict[str, bytes]:
    """All files of one figure by name."""
    found = {
        f"{name}.pdf": saved_bytes(one.figure, format="pdf", subject=one.caption),
        f"{name}.png": saved_bytes(one.figure, format="png", subject=one.caption),
    }
    for index, (part, dataset) in enumerate(one.parts.items()):
        suffix = f"_{part}" if index else ""
        found[f"{name}{suffix}.csv"] = csv_bytes(dataset)
        if has_numbers(dataset):
            caption = one.caption.partition(". ")[0] + "."
            found[f"{name}{suffix}.tex"] = table_bytes(dataset, name=name + suffix, caption=caption)
    return found


def write_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write files, each whole or not at all, in order.

    Args:
        folder: made where it is missing.
        contents: by name; a file of that name is replaced.

    Raises:
        FigureError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            aside = folder / f".{name}.{os.getpid()}.part"
            try:
                with aside.open("wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                aside.replace(folder / name)
            finally:
                with suppress(FileNotFoundError):
                    aside.unlink()
    except OSError as cause:
        raise FigureError(
            f"Figures need a folder that can be written; {folder} gave {cause}. "
            "Name another folder, or make room."
        ) from cause
