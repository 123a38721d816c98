"""Exported graphs agree with their network at any number of points."""

from pathlib import Path

import pytest
import torch
from fitting_cases import parts

from gridtnp import exporting
from gridtnp.estimator import GriddedTNP
from gridtnp.exporting import Flat, export, inputs

pytestmark = pytest.mark.compiled


@pytest.fixture(scope="module")
def model() -> GriddedTNP:
    return GriddedTNP.for_data(parts()[0], dim=8, heads=2, layers=1, quiet=True)


@pytest.mark.filterwarnings("default")  # torch's own, while tracing
def test_a_graph_is_the_network_at_sizes_it_was_not_made_with(
    model: GriddedTNP, tmp_path: Path
) -> None:
    path = model.export(tmp_path / "model.pt2")
    graph = torch.export.load(str(path)).module()
    flat = Flat(model.network).eval()
    for context, targets in ((2, 2), (97, 1003)):
        tensors = inputs(model.network, context, targets, torch.Generator().manual_seed(5))
        with torch.no_grad():
            for found, wanted in zip(graph(*tensors), flat(*tensors), strict=True):
                assert wanted.shape == (1, targets, 1)
                torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_graph_that_differs_is_not_kept(
    model: GriddedTNP, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "TOLERANCE", -1.0)
    with pytest.raises(ValueError, match=r"graph differs from the network by .* and was deleted"):
        export(model.network, tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())


def test_the_file_must_have_its_ending(model: GriddedTNP, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'model\.onnx' does not end in \.pt2"):
        export(model.network, tmp_path / "model.onnx")
