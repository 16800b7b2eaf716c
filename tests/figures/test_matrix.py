"""What a matrix of numbers draws where a number has no interval."""

import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure

from tokensense.figures.marks import DAGGER
from tokensense.figures.matrix import draw_key, draw_matrix
from tokensense.figures.style import styled

WIDE, NARROW = 1.0, 0.05  # inches of a cell: numbers fit, or do not


def matrix(low, high):
    estimate = np.array([[0.5, -0.5, np.nan]])
    ends = {"low": [[0.4, low, np.nan]], "high": [[0.6, high, np.nan]]}
    names = np.full((1, 3), "bootstrap")
    values = {"estimate": estimate} | {name: np.array(own) for name, own in ends.items()}
    return xr.Dataset(
        {name: (("row", "column"), own) for name, own in (values | {"method": names}).items()}
    )


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("bounded", [True, False])
def test_a_number_without_an_interval_is_marked_in_cells_of_any_size(width, bounded):
    ends = (-0.7, -0.3) if bounded else (np.nan, np.nan)
    with styled("plain"):
        axes = Figure().subplots()
        draw_matrix(axes, matrix(*ends), limit=1.0, text="{:.1f}".format, width=width,
                    labels=(["a"], ["b", "c", "d"]))  # fmt: skip
        draw_key(axes, low="less", high="more", neither="holds 0", note="n = 9")
    written = [text.get_text() for text in axes.texts]
    assert any(DAGGER in text for text in written) is not bounded
    assert ("0.5" in written) is (width == WIDE)
    (legend,) = axes.figure.legends
    keys = [text.get_text() for text in legend.get_texts()]
    assert (f"{DAGGER} no interval" in keys) is not bounded
