"""Fitting: the folder of a run, resuming it, and what is refused."""

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import yaml
from accelerate.tracking import GeneralTracker
from fitting_cases import PATIENCE, RECIPE, dataset, environment, parts, small, wait_for

from gridtnp.estimator import GriddedTNP
from gridtnp.files import read_tensors
from gridtnp.recipes import Recipe
from gridtnp.recipes import recipe as to_recipe
from gridtnp.tasks.selection import Count
from gridtnp.training.distributed import device_here
from gridtnp.training.estimates import Estimate, estimate
from gridtnp.training.run_folder import RunFolder

CASES = Path(__file__).parent.parent / "fitting_cases.py"
SHORT = replace(RECIPE, steps=6, validate_every=3)


def last(run: Path) -> dict[str, torch.Tensor]:
    return read_tensors(RunFolder(run).files.last)[0]


def fit(out: Path | None, **options: Any) -> GriddedTNP:
    train, val, _ = parts()
    options = {"recipe": SHORT, "quiet": True} | options
    return small(train).fit(train, val, out=out, **options)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "one"
    fit(out)
    return out


def test_a_run_leaves_everything_behind(run: Path) -> None:
    names = {str(p.relative_to(run)) for p in run.rglob("*") if p.is_file()}
    assert names == {
        *("config.yaml", "data.json", "environment.txt", "metrics.jsonl"),
        *(f"model/{n}" for n in ("model.safetensors", "config.json", "normaliser.json")),
        *(f"checkpoints/{n}/checkpoint.safetensors" for n in ("last", "previous", "best")),
    }
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["recipe"] == asdict(SHORT)  # every default is written out
    assert config["seed"] == 0
    assert config["model"]["architecture"]["positions"] == "relative"
    assert config["task"]["target"] == ["gauges.t2m"]
    data = json.loads((run / "data.json").read_text())
    assert data["fingerprint"] == dataset().fingerprint()
    text = (run / "environment.txt").read_text()
    assert all(word in text for word in ("torch 2.", "seed 0", "device", "gridtnp 0."))
    lines = RunFolder(run).read_metrics()
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert [line["step"] for line in lines if "validation" in line] == [3, 6]
    assert all(line["speed"] > 0 for line in lines)


def test_the_model_of_a_run_is_the_best_one(run: Path) -> None:
    model = GriddedTNP.load(run)
    best = read_tensors(RunFolder(run).files.best)[0]
    for name, value in model.network.state_dict().items():
        assert torch.equal(value, best[f"model.{name}"])


def test_fitting_in_memory_gives_the_same(run: Path) -> None:
    model, same = fit(None), GriddedTNP.load(run)
    for p, q in zip(model.network.parameters(), same.network.parameters(), strict=True):
        assert torch.equal(p, q)


def test_a_finished_run_is_not_trained_again(run: Path) -> None:
    before = (run / "metrics.jsonl").read_text()
    model = fit(run, resume=True)
    assert (run / "metrics.jsonl").read_text() == before
    for p, q in zip(
        model.network.parameters(), GriddedTNP.load(run).network.parameters(), strict=True
    ):
        assert torch.equal(p, q)


@pytest.mark.slow  # make test kills a training in test_killing.py
def test_killed_at_a_random_moment_it_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    """Fresh processes; killed without warning, as often as there is time for."""
    command = [sys.executable, str(CASES), str(tmp_path / "killed"), "24", "--quiet", "--resume"]
    slowly = ["--slow", "0.05", "--hold", "40", str(tmp_path / "never")]
    process = subprocess.Popen([*command, *slowly], env=environment())
    wait_for(tmp_path / "killed" / "metrics.jsonl", process)
    time.sleep(random.uniform(0.0, 1.5))
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    subprocess.run(command, env=environment(), check=True)
    fit(tmp_path / "undisturbed", recipe=RECIPE)
    undisturbed, killed = last(tmp_path / "undisturbed"), last(tmp_path / "killed")
    assert undisturbed.keys() == killed.keys()
    for name, value in undisturbed.items():
        if not name.startswith("rng."):
            assert torch.equal(value, killed[name]), name
    steps = [line["step"] for line in RunFolder(tmp_path / "killed").read_metrics()]
    assert steps == list(range(1, 25))


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) * 2 // 3] ^= 1
    path.write_bytes(content)


def test_a_damaged_checkpoint_is_refused_and_the_one_before_is_used(
    run: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    files, before = RunFolder(copy).files, last(run)
    damage(files.last)
    with pytest.warns(
        UserWarning, match=r"last.* was changed .*; resuming from .*previous.* step 3"
    ):
        fit(copy, resume=True)
    steps = [line["step"] for line in RunFolder(copy).read_metrics()]
    assert steps == [1, 2, 3, 4, 5, 6]
    after = last(copy)
    assert all(torch.equal(v, after[k]) for k, v in before.items() if not k.startswith("rng."))
    assert read_tensors(files.previous)[1]["step"] == "3"  # not what was damaged
    files.last.unlink()  # a kill just before the new one is there
    fit(copy, resume=True)
    assert read_tensors(files.last)[1]["step"] == "6"
    damage(files.last)
    damage(files.previous)
    with pytest.raises(
        ValueError, match=r"previous.* was changed .*; remove .*last.* to start the run"
    ):
        fit(copy, resume=True)


def test_without_its_best_weights_a_run_goes_on_and_says_so(run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    files = RunFolder(copy).files
    files.last.unlink()
    damage(files.best)
    with pytest.warns(UserWarning, match=r"best.* was changed .*; the best weights from step 3 on"):
        fit(copy, resume=True)
    assert read_tensors(files.best)[1]["step"] == "6"


def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    go_on = tmp_path / "go on"
    command = [sys.executable, str(CASES), str(tmp_path / "run"), "24", "--hold", "5", str(go_on)]
    process = subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    wait_for(tmp_path / "run" / "metrics.jsonl", process)
    process.send_signal(signal.SIGINT)
    go_on.touch()
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    assert "Stopped after step" in output
    assert "resume=True" in output
    assert RunFolder(tmp_path / "run").files.last.exists()


def test_what_cannot_go_on_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"already holds a run; continue it with resume=True or"):
        fit(run)
    with pytest.raises(ValueError, match=r"another recipe \(steps differ\)"):
        fit(run, resume=True, recipe=replace(SHORT, steps=7))
    with pytest.raises(ValueError, match=r"another recipe \(steps, .* leave the recipe out"):
        fit(run, resume=True, recipe="quick")
    fit(run, resume=True, recipe=None)  # as the message says: with the recipe of the run
    with pytest.raises(ValueError, match=r"seed=1: the run started with seed=0"):
        fit(run, resume=True, seed=1)
    with pytest.raises(ValueError, match=r"resume=True needs the folder of the run; give out="):
        fit(None, resume=True)
    train, val, _ = parts()
    with pytest.raises(ValueError, match=r"The model differs from that in .*config\.yaml"):
        GriddedTNP.for_data(train, dim=8, heads=2, quiet=True).fit(
            train, val, out=run, resume=True, recipe=SHORT, quiet=True
        )
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"Cannot create .*notes\.txt is a file; choose"):
        fit(tmp_path / "notes.txt" / "run")
    with pytest.raises(ValueError, match=r"is not empty; choose another folder for the run"):
        fit(tmp_path)
    with pytest.raises(ValueError, match=r"No such run: .* has no config\.yaml; give the `out`"):
        fit(tmp_path, resume=True)
    with pytest.raises(ValueError, match=r"No such run: .*nothing does not exist; give the `out`"):
        RunFolder.existing(tmp_path / "nothing")


def test_a_run_of_format_1_can_be_resumed(run: Path, tmp_path: Path) -> None:
    old = Path(shutil.copytree(run, tmp_path / "old"))
    config = yaml.safe_load((old / "config.yaml").read_text())
    config |= {"format": 1, "setting": config.pop("task")}
    (old / "config.yaml").write_text(yaml.safe_dump(config))
    assert fit(old, resume=True, recipe=None).recipe == SHORT


def test_other_data_are_refused(run: Path) -> None:
    table = dataset()
    source = table.sources["gauges"]
    source.table[0, 0] += 1.0  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"have fingerprint .*; resume with the data that the run"):
        RunFolder(run).require_same_fingerprint(table)


def test_minutes_are_in_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gridtnp.training.fit.estimate", lambda *_: Estimate(1, 1, 0.1, 1))
    train, _, _ = parts()
    model = small(train)
    long = replace(RECIPE, steps=10**6)
    model.fit(train, recipe=long, minutes=0.005, out=tmp_path / "r", quiet=True)
    recipe = yaml.safe_load((tmp_path / "r" / "config.yaml").read_text())["recipe"]
    assert recipe["minutes"] == 0.005
    assert recipe["steps"] == 3  # about, of a tenth of a second each
    steps = read_tensors(RunFolder(tmp_path / "r").files.last)[1]["step"]
    model.fit(train, minutes=1, out=tmp_path / "r", resume=True, quiet=True)  # nothing left to do
    assert read_tensors(RunFolder(tmp_path / "r").files.last)[1]["step"] == steps
    for wrong in (0, "1"):
        with pytest.raises(ValueError, match=rf"minutes={wrong!r}: must be a positive number"):
            model.fit(train, minutes=cast(Any, wrong), quiet=True)


def test_the_number_of_threads_is_measured_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[int] = []
    monkeypatch.setattr("gridtnp.training.fit.MEASURED", 1)
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)
    monkeypatch.setattr("torch.set_num_threads", used.append)
    for fastest in (1, 2):
        seen = Estimate(1, 1, 0.1, 1, threads=fastest)
        monkeypatch.setattr("gridtnp.training.fit.estimate", lambda *_, seen=seen: seen)
        run = tmp_path / str(fastest)
        model = fit(run)
        assert used == ([1, 2] if fastest == 1 else [])  # and what was set before
        assert yaml.safe_load((run / "config.yaml").read_text())["recipe"]["threads"] == fastest
        assert model.recipe == SHORT  # other machines have other threads
        fit(run, resume=True)
        assert used == ([1, 2, 1, 2] if fastest == 1 else [])
        used.clear()


def test_the_estimate_computes_as_much_at_once_as_training_does() -> None:
    train, _, _ = parts()
    model, batches = small(train), []
    task = model.contents.sampler(train, batch=8).draw(0)
    encode = model.network.encode

    def noted(context: Any) -> Any:
        batches.append({points.batch for points in context.values()})
        return encode(context)

    model.network.encode = noted  # pyright: ignore[reportAttributeAccessIssue]
    recipe, cpu = replace(SHORT, batch=8, accumulate=2, threads=1), torch.device("cpu")
    estimate(model.network, task, recipe, cpu, processes=2)
    assert batches
    assert all(found == {2} for found in batches)


def test_accelerators_without_double_precision_are_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    apple = torch.device("mps")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: apple)
    assert device_here() == torch.device("cpu")


def test_recipes_have_names_and_typos_are_reported() -> None:
    train, _, _ = parts()
    with pytest.raises(ValueError, match=r"Unknown recipe 'quik'; did you mean 'quick'"):
        small(train).fit(train, recipe="quik", quiet=True)


def test_a_selection_says_which_observations_are_context() -> None:
    train, _, _ = parts()
    seen: list[int] = []
    model = small(train)
    model.network.register_forward_pre_hook(
        lambda _, inputs: seen.append(inputs[0].context["gauges"].n)
    )
    model.fit(train, recipe=Recipe(2, 2), selection={"gauges": Count(3)}, quiet=True)
    assert set(seen) == {3}


class Notebook(GeneralTracker):
    """A tracker that keeps everything."""

    name = "notebook"
    requires_logging_directory = False

    def __init__(self) -> None:
        super().__init__()
        self.logged: dict[int, dict[str, float]] = {}

    @property
    def tracker(self) -> "Notebook":
        return self

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.config = values

    def log(self, values: dict[str, float], step: int | None = None, **_: Any) -> None:
        assert step is not None
        self.logged[step] = values


def test_trackers_get_every_report(tmp_path: Path) -> None:
    notebook = Notebook()
    fit(tmp_path / "run", trackers=[notebook])
    assert list(notebook.logged) == [1, 2, 3, 4, 5, 6]
    assert {"loss", "validation", "speed"} <= set(notebook.logged[6])
    assert notebook.config["steps"] == 6


def test_trackers_that_cannot_be_used_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ValueError, match=r"Unknown tracker 'tensorbored'; did you mean 'tensorboard'"
    ):
        fit(None, trackers=["tensorbored"])
    monkeypatch.setattr("gridtnp.training.fit.get_available_trackers", list)
    for name in ("tensorboard", "wandb"):
        with pytest.raises(ValueError, match=rf"'{name}' is not installed; pip install {name}\."):
            fit(None, trackers=[name])
    monkeypatch.setattr("gridtnp.training.fit.get_available_trackers", lambda: ["tensorboard"])
    with pytest.raises(ValueError, match=r"'tensorboard' writes to the folder of the run; give"):
        fit(None, trackers=["tensorboard"])


def test_tensorboard_gets_every_report(tmp_path: Path) -> None:
    """If it is installed; it is no dependency."""
    pytest.importorskip("tensorboard", reason="tensorboard is not installed, which is optional")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    fit(tmp_path / "run", trackers=["tensorboard"])
    events = EventAccumulator(str(tmp_path / "run" / "gridtnp"))
    events.Reload()
    metrics = RunFolder(tmp_path / "run").read_metrics()
    assert [e.step for e in events.Scalars("loss")] == [line["step"] for line in metrics]
    found = [e.value for e in events.Scalars("validation")]
    assert found == pytest.approx([m["validation"] for m in metrics if "validation" in m])


def test_progress_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    fit(None, quiet=False)
    printed = capsys.readouterr().out
    assert "step 6 of 6" in printed
    assert "validation log-likelihood" in printed
    assert "points/s" in printed
    assert "0:00 left" in printed


def test_configs_of_newer_or_broken_runs_are_reported(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for text, message in (
        ("format: 9\n", r"format 9, but .* up to 2; update gridtnp"),
        ("a: [1\n", r"Cannot read .*config\.yaml as YAML"),
        ("hello\n", r"has no format number; was it written by `fit`"),
    ):
        run.config.write_text(text)
        with pytest.raises(ValueError, match=message):
            RunFolder.existing(tmp_path).read_config()


def test_metrics_cut_short_by_a_kill_are_still_read(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.metrics.write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert [line["step"] for line in run.read_metrics()] == [1, 2]
    run.drop_metrics_after(1)
    assert run.metrics.read_text() == '{"step": 1}\n'


def test_without_a_validation_part_networks_that_correct_kriging_train_less(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing would end a training in which the network learns its stations by heart."""
    monkeypatch.setattr("gridtnp.training.fit.UNJUDGED", 2)
    train, val, _ = parts()
    model = GriddedTNP.for_data(train, dim=8, heads=2, layers=1, quiet=True)
    assert to_recipe(model.recipe).steps == 1_000
    assert to_recipe(model.fit(train).recipe).steps == 2
    assert "recipe: 2 steps" in capsys.readouterr().out
    own = Recipe(3, 2)
    assert to_recipe(model.fit(train, recipe=own, quiet=True).recipe).steps == 3
    assert to_recipe(model.fit(train, val, recipe=own, quiet=True).recipe).steps == 3


def test_the_default_of_tiny_models_ends_after_ten_minutes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gridtnp.training.fit.LONGEST", 1e-3)
    train, val, _ = parts()
    model = GriddedTNP.for_data(train, dim=8, heads=2, layers=1, quiet=True)
    for seconds, minutes in ((1e-9, None), (30.0, 1e-3)):
        seen = Estimate(1, 1, seconds, 1)
        monkeypatch.setattr("gridtnp.training.fit.estimate", lambda *_, seen=seen: seen)
        monkeypatch.setattr("gridtnp.training.fit.UNJUDGED", 2)
        found = to_recipe(model.fit(train, quiet=True).recipe)
        assert found.minutes == minutes
        model = GriddedTNP.for_data(train, dim=8, heads=2, layers=1, quiet=True)
    own = Recipe(2, 2)
    assert to_recipe(model.fit(train, val, recipe=own, quiet=True).recipe).minutes is None
