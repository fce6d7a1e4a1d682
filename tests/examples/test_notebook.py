"""The notebook runs from its first cell to its plot, and is committed without outputs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "tail_latency.ipynb"


def test_it_is_committed_without_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert cells and all(cell.outputs == [] and cell.execution_count is None for cell in cells)


@pytest.mark.slow
def test_it_ends_in_a_plot_of_both_tails(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(notebook, timeout=None, resources={"metadata": {"path": str(tmp_path)}})
    asyncio.run(client.async_execute())
    outputs = {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}
    for plot in ("plotted", "plotted-beside"):
        assert any("image/png" in output.get("data", {}) for output in outputs[plot]), plot
    [printed] = outputs["compared"]
    assert "vision alone: p50" in printed.text and "vision beside the DLRM: p50" in printed.text
