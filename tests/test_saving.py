"""Saved models: the same predictions after loading, older formats, and damaged files."""

import hashlib
import json
import os
import resource
import shutil
import threading
from pathlib import Path
from typing import Any

import golden
import pytest
import torch
from fitting_cases import parts, small
from safetensors.torch import save_file

import gridtnp as gt
from gridtnp import files
from gridtnp.estimator import GriddedTNP
from gridtnp.files import read_tensors
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
    expected = {"map": 17.907388755627526, "std": 9.421863698586494}
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


# ---- replacing a folder --------------------------------------------------------------------------


def test_only_a_folder_that_is_wholly_a_model_is_replaced(
    saved: tuple[GriddedTNP, Path], folder: Path, tmp_path: Path
) -> None:
    """A `config.json` alone makes no model, not even beside a file called like our weights."""
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ValueError, match=r"foreign exists and is not a model; save to another"):
        saved[0].save(foreign)
    (foreign / "model.safetensors").write_bytes(b"of another library")
    with pytest.raises(ValueError, match=r"foreign exists and is not a model; save to another"):
        saved[0].save(foreign)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"copy has files besides those of a model \(notes\.txt\)"):
        saved[0].save(folder)
    (folder / "notes.txt").rename(tmp_path / "notes.txt")
    (folder / "normaliser.json").unlink()
    (folder / "normaliser.json").mkdir()
    with pytest.raises(ValueError, match=r"besides those of a model \(normaliser\.json\)"):
        saved[0].save(folder)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match=r"file exists and is not a model"):
        saved[0].save(tmp_path / "file")
    kept = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert kept == {
        *("foreign/config.json", "foreign/model.safetensors", "notes.txt", "file"),
        *("copy/config.json", "copy/model.safetensors"),
    }


def test_hidden_neighbours_of_a_model_are_not_touched(
    saved: tuple[GriddedTNP, Path], folder: Path, tmp_path: Path
) -> None:
    for name in (".copy.old", ".copy.new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.tex").write_text("years of work")
    (tmp_path / ".model.safetensors.new").write_text("mine")
    saved[0].save(folder)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        *(".copy.new", ".copy.old", ".model.safetensors.new", "copy")
    ]
    assert (tmp_path / ".copy.old" / "thesis.tex").read_text() == "years of work"


@pytest.fixture(params=["in one step", "in two steps"])
def exchange(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders are exchanged in one step where the file system can do that, else in two."""
    if request.param == "in two steps":
        monkeypatch.setattr(files, "_exchange", lambda *_: False)


@pytest.mark.usefixtures("exchange")
def test_the_old_model_comes_back_if_anything_fails(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    other = GriddedTNP.load(folder)
    replace, calls = os.replace, 0

    def failing(at: int) -> Any:
        def fail(*paths: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == at:
                raise OSError(28, "No space left on device")
            replace(*paths)

        return fail

    for at in range(1, 20):
        calls = 0
        monkeypatch.setattr(os, "replace", failing(at))
        try:
            other.save(folder)
            break  # nothing was left to fail
        except OSError:
            monkeypatch.setattr(os, "replace", replace)
            assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
            assert [p.name for p in folder.parent.iterdir()] == ["copy"]
    assert at > 2


@pytest.mark.usefixtures("exchange")
def test_loading_while_saving_always_finds_a_whole_model(folder: Path) -> None:
    ended, failures = threading.Event(), []
    models = [GriddedTNP.load(folder) for _ in range(2)]
    with torch.no_grad():
        for value, model in enumerate(models):
            for p in model.network.parameters():
                p.fill_(value + 1.0)
    models[0].save(folder)

    def save() -> None:
        try:
            while not ended.is_set():
                for model in models:
                    model.save(folder)
        except BaseException as error:
            failures.append(error)

    saver = threading.Thread(target=save)
    saver.start()
    try:
        found = [GriddedTNP.load(folder) for _ in range(3)]
    finally:
        ended.set()
        saver.join()
    assert not failures
    values = [
        {v for p in m.network.state_dict().values() for v in p.unique().tolist()} for m in found
    ]
    assert set(map(frozenset, values)) <= {frozenset({1.0}), frozenset({2.0})}


def test_a_kill_between_the_two_steps_loses_nothing(
    saved: tuple[GriddedTNP, Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where folders cannot be exchanged in one step: the old one is put back by whoever is next."""
    monkeypatch.setattr(files, "_exchange", lambda *_: False)
    monkeypatch.setattr(files, "_is_dead", lambda _: True)
    replace, before = os.replace, (folder / "config.json").read_bytes()

    class Killed(BaseException):
        pass

    def until_aside(old: Any, new: Any) -> None:
        replace(old, new)
        if Path(old) == folder:
            raise Killed

    with monkeypatch.context() as killed:
        killed.setattr(os, "replace", until_aside)
        killed.setattr(files, "_clear", lambda _: None)
        with pytest.raises(Killed):
            saved[0].save(folder)
    assert not folder.exists()
    GriddedTNP.load(folder)
    assert (folder / "config.json").read_bytes() == before
    assert [p.name for p in folder.parent.iterdir()] == ["copy"]


def test_a_link_to_a_model_stays_a_link(saved: tuple[GriddedTNP, Path], folder: Path) -> None:
    link = folder.with_name("link")
    link.symlink_to(folder)
    saved[0].save(link)
    assert link.is_symlink()
    assert GriddedTNP.load(link).spec == saved[0].spec


# ---- contents that are not those of a model ------------------------------------------------------


def rewrite(folder: Path, change: Any = None, tensors: Any = None) -> None:
    """Change the record or the weights of a model, with checksums that fit."""
    record = json.loads((folder / "config.json").read_text())
    sums = record.pop("sha256")
    if change is not None:
        change(record)
    if tensors is not None:
        weights = read_tensors(folder / "model.safetensors")[0]
        save_file(tensors(weights), folder / "model.safetensors")
    for name in ("model.safetensors", "normaliser.json"):
        sums[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    sums["config.json"] = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
    (folder / "config.json").write_text(json.dumps(record | {"sha256": sums}))


@pytest.mark.parametrize(
    ("where", "value", "sentence"),
    [
        ("config.dim", 10**7, r"type F32 and shape \(.*but the network has .* shape \(10000000"),
        ("config.dim", 10**12, r"config\.json does not describe a model \(.*overflow"),
        (
            "config.dim",
            17,
            r"does not describe a model \(heads=2 does not divide the token width 17",
        ),
        ("config.dim", "wide", r"does not describe a model \(dim='wide': must be a valid integer"),
        ("config.dim_y", 10**9, r"shape \(2000000000"),
        ("config.architecture.processor.layers", 10**12, r"the network has more than \d+ tensors"),
        (
            "config.architecture.processor.window.0",
            10**9,
            r"does not describe a model \(Window side 1000000000 does",
        ),
        (
            "config.architecture.grid.axes.0.size",
            10**15,
            r"\(Latitudes .* are outside -90 to 90",
        ),
        ("config.architecture.grid.axes.0.size", 0, r"Axis 'lat' has size 0; must be at least 1"),
        ("config.architecture.positions", "absolute", r"lacks tensor|has an unknown tensor"),
        ("config.architecture.decoder.neighbours", 10**18, r"does not describe a model|shape \("),
        ("config.architecture.kind", "cnp", r"config\.json does not describe a model"),
        ("config.tokens.embedding.0.per_column", 10**12, r"shape \(16, 2000000000002\)"),
        (
            "config.tokens.embedding.0.per_column",
            3,
            r"per_column=3: Fourier features come in pairs",
        ),
        ("config.sources.gauges", 10**9, r"and shape \(.*shape \(.*1000000"),
        (
            "config",
            None,
            r"does not describe a model \(ModelConfig=None: must be a valid dictionary",
        ),
        ("task", None, r"does not describe a model"),
        ("task.lead", 3, r"describe a model \(lead=3: must be a valid string"),
        ("recipe.steps", 0, r"describe a model \(steps=0: must be greater than 0"),
        ("recipe.pace", 1, r"Unknown setting 'pace' of a recipe"),
    ],
)
def test_absurd_configurations_are_refused_before_anything_is_allocated(
    folder: Path, where: str, value: Any, sentence: str
) -> None:
    def change(record: Any) -> None:
        *path, last = (int(key) if key.isdigit() else key for key in where.split("."))
        for key in path:
            record = record[key]
        record[last] = value

    rewrite(folder, change)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=sentence) as raised:
        GriddedTNP.load(folder)
    assert "\n" not in str(raised.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kB


NORM = "decoder.blocks.0.norm.weight"


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        (lambda w: w | {NORM: w[NORM] * torch.nan}, rf"'{NORM}' of .* has NaN or inf; train"),
        (lambda w: w | {NORM: w[NORM].to(torch.int32)}, rf"'{NORM}' of .* has type I32 and shape"),
        (
            lambda w: w | {NORM: w[NORM][:-1]},
            r"shape \(15,\), but the network has .* \(16,\); copy",
        ),
        (lambda w: {k: v for k, v in w.items() if k != NORM}, rf"lacks tensor '{NORM}'; copy or"),
        (lambda w: w | {"more": torch.ones(3)}, r"has an unknown tensor 'more'; copy or save"),
        (lambda _: {}, r"the network has more than 0 tensors, model\.safetensors 0"),
    ],
)
def test_weights_that_are_not_those_of_the_network_are_refused(
    folder: Path, tensors: Any, sentence: str
) -> None:
    rewrite(folder, tensors=tensors)
    with pytest.raises(ValueError, match=sentence) as raised:
        GriddedTNP.load(folder)
    assert "\n" not in str(raised.value)


def test_weights_in_half_precision_are_read(folder: Path) -> None:
    rewrite(folder, tensors=lambda w: {k: v.bfloat16() for k, v in w.items()})
    assert GriddedTNP.load(folder).network.state_dict()[NORM].dtype == torch.float32


@pytest.mark.parametrize("text", ["[]", "{", '{"gauges.t2m": 1}', '{"gauges.t2m": [0, 0]}'])
def test_a_normaliser_that_is_none_is_refused(folder: Path, text: str) -> None:
    (folder / "normaliser.json").write_text(text)
    rewrite(folder)
    with pytest.raises(
        ValueError, match=r"normaliser\.json does not describe a model \("
    ) as raised:
        GriddedTNP.load(folder)
    assert "\n" not in str(raised.value)
