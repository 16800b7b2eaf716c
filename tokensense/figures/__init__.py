"""Figures and tables from finished datasets. Never imports torch.

`draw` writes a set of CATALOGUE to a folder; `render` gives the same figures in memory.
"""

from tokensense.figures.sets import CATALOGUE, draw, render

__all__ = ["CATALOGUE", "draw", "render"]
