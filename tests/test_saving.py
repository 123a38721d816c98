"""Saved models: the same predictions after loading, older formats, and damaged files."""

import json
import shutil
from pathlib import Path

import golden
import pytest
import torch
from fitting_cases import parts, small

import gridtnp as gt
from gridtnp.estimator import GriddedTNP
from gridtnp.recipes import Recipe

FORMAT_1 = Path(__file__).parent / "saved-model-format-1"


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


def test_a_loaded_model_remembers_the_recipe_of_its_last_fit(tmp_path: Path) -> None:
    train, val, _ = parts()
    model, first, last = small(train), Recipe(2, 2, validate_every=2), Recipe(1, 2, rate=1e-3)
    model.fit(train, recipe=first, quiet=True)
    assert GriddedTNP.load(model.save(tmp_path / "model")).recipe == first
    model.fit(train, val, recipe=last, out=tmp_path / "run", quiet=True)
    assert GriddedTNP.load(tmp_path / "run").recipe == last
    assert GriddedTNP.load(model.save(tmp_path / "model")).recipe == last
    assert "1 steps of 2 tasks, adamw" in repr(GriddedTNP.load(tmp_path / "model"))


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_a_model_of_format_1_loads_and_predicts_as_before(tmp_path: Path) -> None:
    """The numbers were recorded by the code that saved it."""
    record = json.loads((FORMAT_1 / "config.json").read_text())
    assert record["format"] == 1
    assert "setting" in record
    model = GriddedTNP.load(FORMAT_1)
    assert model.recipe == "default"  # format 1 did not record it
    stations, terrain = gt.demo.load()
    data = gt.Dataset(
        {"stations": stations[stations["time"] >= "1960"]},
        target="stations.tmax",
        static={"elevation": terrain["elevation"]},
        features=["month"],
    )
    _, _, test = data.split(time=["1990", "1994"], gap="31D", hold_out_stations=0.2)
    found = golden.use_numbers(model, test, terrain)
    expected = {"map": 17.907388755627526, "std": 9.421863698586494, "crps": 7.629725737848743}
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-4)
    again = model.save(tmp_path / "again")
    assert json.loads((again / "config.json").read_text())["format"] == 2
    assert GriddedTNP.load(again).spec == model.spec


def test_what_is_not_a_model_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"No such model: .*nothing does not exist"):
        GriddedTNP.load(tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"No such model: .* has no config\.json; give a folder"):
        GriddedTNP.load(tmp_path)
    (tmp_path / "config.yaml").write_text("format: 1\n")
    with pytest.raises(ValueError, match=r"The run in .* has no model yet; continue it with fit"):
        GriddedTNP.load(tmp_path)


def test_saving_over_something_else_is_refused(
    saved: tuple[GriddedTNP, Path], tmp_path: Path
) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match=r"exists and is not a model; save to another folder"):
        saved[0].save(tmp_path)
    assert (tmp_path / "thesis.tex").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "normaliser.json"])
@pytest.mark.parametrize("how", ["short", "changed"])
def test_files_cut_short_or_changed_are_reported(folder: Path, name: str, how: str) -> None:
    content = (folder / name).read_bytes()
    middle = len(content) // 2
    changed = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    (folder / name).write_bytes(content[:-20] if how == "short" else changed)
    with pytest.raises(ValueError, match=rf"{name} was cut short or changed \(its checksum"):
        GriddedTNP.load(folder)


def test_a_changed_or_unreadable_config_is_reported(folder: Path) -> None:
    path = folder / "config.json"
    text = path.read_text()
    path.write_text(text.replace('"lead": "0h"', '"lead": "6h"'))
    with pytest.raises(ValueError, match=r"config\.json was cut short or changed \(its checksum"):
        GriddedTNP.load(folder)
    path.write_text(text[: len(text) // 2])
    with pytest.raises(
        ValueError, match=r"Cannot read .*config\.json: it was cut short or changed"
    ):
        GriddedTNP.load(folder)
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"config\.json has no format number"):
        GriddedTNP.load(folder)


def test_a_newer_format_and_a_missing_file_are_reported(folder: Path) -> None:
    (folder / "normaliser.json").unlink()
    with pytest.raises(ValueError, match=r"has no file normaliser\.json; copy or save"):
        GriddedTNP.load(folder)
    record = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(record | {"format": 3, "gridtnp": "9.9"}))
    with pytest.raises(
        ValueError, match=r"has format 3, written by gridtnp 9\.9, but .* up to 2; update"
    ):
        GriddedTNP.load(folder)
