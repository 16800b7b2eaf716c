"""The notebooks: public API only, no functions, no stored outputs; executed by the slow tests."""

import ast
import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
ALLOWED = {
    *("tokensense", "tempfile", "pathlib", "pandas", "IPython.display", "numpy", "xarray"),
    # Settings, tasks and evaluation of training: documented modules.
    *("tokensense.trainer.config", "tokensense.trainer.evaluate", "tokensense.trainer.problems"),
}


def cells(path):
    found = nbformat.read(path, as_version=4)
    return [cell for cell in found.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_cells_use_the_public_face_and_define_nothing(path):
    for cell in cells(path):
        assert not cell.outputs
        assert cell.execution_count is None
        for node in ast.walk(ast.parse(cell.source)):
            assert not isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Lambda)), cell.source
            if isinstance(node, ast.Import):
                assert {alias.name for alias in node.names} <= ALLOWED
            if isinstance(node, ast.ImportFrom):
                assert node.module in ALLOWED


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(path):
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    found = nbformat.read(path, as_version=4)
    NotebookClient(found, timeout=300, resources={"metadata": {"path": path.parent}}).execute()
    assert any(cell.get("outputs") for cell in found.cells)
