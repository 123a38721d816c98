"""Models on disk: the same predictions after loading, and a sentence for whatever is wrong."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from fitting_cases import parts, small

from gridtnp.estimator import GriddedTNP


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[GriddedTNP, Path]:
    model = small(parts()[0])
    return model, model.save(tmp_path_factory.mktemp("saved") / "model")


@pytest.fixture
def folder(saved: tuple[GriddedTNP, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved[1], tmp_path / "copy"))


def test_a_loaded_model_is_the_same(saved: tuple[GriddedTNP, Path]) -> None:
    model, path = saved
    again = GriddedTNP.load(path)
    assert (again.config, again.spec, again.normaliser) == (
        *(model.config, model.spec),
        model.normaliser,
    )
    task = model.spec.sampler(parts()[0], model.normaliser, batch=2).draw(0)
    with torch.no_grad():
        assert torch.equal(again.network(task).mean, model.network(task).mean)
    assert sorted(p.name for p in path.iterdir()) == [
        *("config.json", "model.safetensors"),
        "normaliser.json",
    ]


def test_saving_again_replaces(folder: Path) -> None:
    with torch.no_grad():
        other = GriddedTNP.load(folder)
        next(other.network.parameters()).fill_(0.5)
    other.save(folder)
    assert next(GriddedTNP.load(folder).network.parameters()).eq(0.5).all()
    assert [p.name for p in folder.parent.iterdir()] == ["copy"]


def test_a_model_in_the_folder_of_a_run(saved: tuple[GriddedTNP, Path], tmp_path: Path) -> None:
    shutil.copytree(saved[1], tmp_path / "run" / "model")
    (tmp_path / "run" / "config.yaml").write_text("format: 1\n")
    assert GriddedTNP.load(tmp_path / "run").config == saved[0].config


def test_what_is_not_a_model_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must be a folder .* but .*nothing does not exist"):
        GriddedTNP.load(tmp_path / "nothing")
    with pytest.raises(
        ValueError, match=r"has no config\.json; give the folder of a model or of a"
    ):
        GriddedTNP.load(tmp_path)
    (tmp_path / "config.yaml").write_text("format: 1\n")
    with pytest.raises(ValueError, match=r"A run must have ended .* has no model yet; go on with"):
        GriddedTNP.load(tmp_path)


def test_saving_over_something_else_is_refused(
    saved: tuple[GriddedTNP, Path], tmp_path: Path
) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match=r"needs a folder of its own, but .* holds something else"):
        saved[0].save(tmp_path)
    assert (tmp_path / "thesis.tex").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "normaliser.json"])
@pytest.mark.parametrize("how", ["short", "changed"])
def test_files_cut_short_or_changed_are_told(folder: Path, name: str, how: str) -> None:
    content = (folder / name).read_bytes()
    middle = len(content) // 2
    changed = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    (folder / name).write_bytes(content[:-20] if how == "short" else changed)
    with pytest.raises(
        ValueError, match=rf"{name} must be as it was saved, but its checksum differs"
    ):
        GriddedTNP.load(folder)


def test_a_changed_or_unreadable_config_is_told(folder: Path) -> None:
    path = folder / "config.json"
    text = path.read_text()
    path.write_text(text.replace('"lead": "0h"', '"lead": "6h"'))
    with pytest.raises(ValueError, match=r"config\.json must be as it was saved"):
        GriddedTNP.load(folder)
    path.write_text(text[: len(text) // 2])
    with pytest.raises(ValueError, match=r"config\.json must be that of a model, but it cannot be"):
        GriddedTNP.load(folder)
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"but it has no format number"):
        GriddedTNP.load(folder)


def test_a_newer_format_and_a_missing_file_are_told(folder: Path) -> None:
    (folder / "normaliser.json").unlink()
    with pytest.raises(ValueError, match=r"must have a file normaliser\.json, but .* has none"):
        GriddedTNP.load(folder)
    record = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(record | {"format": 2, "gridtnp": "9.9"}))
    with pytest.raises(
        ValueError, match=r"format 1 or older, but it is of 2, written by gridtnp 9\.9"
    ):
        GriddedTNP.load(folder)
