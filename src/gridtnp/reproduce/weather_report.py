"""Report of a weather experiment: tables with baselines, the paper's conclusions, figures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from rich.console import Console

from gridtnp.evaluation.scores import CALIBRATED
from gridtnp.reproduce.conclusions import NUMBERS, difference, judge, mean_over_times
from gridtnp.reproduce.figures import Mark, tradeoff
from gridtnp.reproduce.rows import Result, measure_times, same_tests
from gridtnp.reproduce.tables import (
    ERRORS,
    made_by,
    markdown,
    mean_and_error,
    number,
)
from gridtnp.reproduce.weather import Weather
from gridtnp.reproduce.weather_figures import draw_figures
from gridtnp.reproduce.weather_scores import run_baselines

GROUPS = {
    "all": "all targets, those of the context among them (the paper's)",
    "apart": "stations that are not in the context",
    "unseen": "stations that are never in training",
}
PLACES = {
    "date line": "within 5° of the date line",
    "polar": "poleward of 75°",
    "elsewhere": "elsewhere",
}
"""Groups of stations that are not in the context, by where they are."""


def write_report(experiment: Weather, out: Path, command: str, console: Console) -> list[Path]:
    """Time all rows, score baselines, and write `table.md` and figures if matplotlib is there.

    Results of other test tasks are left out.
    """
    results = []
    for result in measure_times(out, lambda _: experiment):
        if same_tests(result, experiment):
            results.append(result)
        else:
            console.print(f"left out {result['row']}: test on {result['test']}", highlight=False)
    if not results:
        test = experiment.about()["test"]
        raise ValueError(f"No results on {test} in {str(out)!r}; train a row first.")
    run_baselines(experiment, out, command, console)
    order = list(experiment.rows)
    results.sort(key=lambda r: (order.index(r["row"]), r["seed"]))
    baselines = [json.loads(p.read_text()) for p in sorted(out.glob("baselines/*.json"))]
    baselines = [b for b in baselines if same_tests(b, experiment)]
    table = out / "table.md"
    table.write_text(_page(experiment, results, baselines), encoding="utf-8")
    if find_spec("matplotlib") is None:
        return [table]
    marks = [
        Mark(r["row"], f"{mean:.3f}  {_label(experiment, r)}", r["forward_ms"], mean, error)
        for r in results
        for mean, error in [mean_over_times(np.array(r["groups"]["all"]["log_likelihood"]))]
    ]
    marks.sort(key=lambda mark: -mark.score)
    figure = tradeoff({"": marks}, "log-likelihood", out / "tradeoff.png")
    return [table, figure, *draw_figures(experiment, results, out)]


def rmse(group: Mapping[str, list]) -> tuple[np.ndarray, np.ndarray]:
    """Root-mean-square error of every variable over all targets, and its standard error."""
    squared, weight = np.array(group["squared_error"]), np.array(group["targets"])[:, None]
    mean = (weight * squared).sum(0) / weight.sum()
    moves = weight / weight.mean() * (squared - mean)  # what every task adds to the mean
    error = np.array([mean_over_times(column)[1] for column in moves.T])
    return np.sqrt(mean), error / (2 * np.sqrt(mean))


def _page(experiment: Weather, results: list[Result], baselines: list[Result]) -> str:
    first, everything = results[0], [*results, *baselines]
    lines = [
        f"Table `{first['table']}` of the paper on {first['data']}, scale {first['scale']}: "
        f"training {first['training']}; test on {first['test']}.",
        "",
        "Log-likelihood of normalised values (sum over variables), RMSE and CRPS in the data's "
        "units (mean over variables), part of the observations in central 90 % intervals, mean "
        f"log-density of normalised errors ({CALIBRATED:.3f} if calibrated), time of a forward "
        "pass for a batch of eight; ± one standard error over test tasks.",
        "",
    ]
    for group, words in GROUPS.items():
        rows = [r for r in everything if group in r["groups"]]
        if rows:
            title = [f"**{words[0].upper()}{words[1:]}**", ""] if len(first["groups"]) > 1 else []
            lines += [*title, *_scores(experiment, rows, group), ""]
    if any(place in first["groups"] for place in PLACES):
        lines += [
            "**RMSE of stations that are not in the context, by place**",
            "",
            *_places(experiment, everything),
            "",
        ]
    likelihoods = [r["groups"]["all"]["log_likelihood"] for r in results]
    lines += ["**Beside the paper**, whose numbers are of ERA5 at its full size", ""]
    lines += [*_beside_paper(experiment, results), ""]
    variables = first["variables"]
    if len(variables) > 1:
        lines += ["**RMSE of every variable**", ""]
        body = [
            [_label(experiment, r), *(f"{x:.3f}" for x in rmse(r["groups"]["all"])[0])]
            for r in everything
        ]
        lines += [*markdown(["model", *variables], body), ""]
    lines += [
        "**The paper's conclusions**, by differences in log-likelihood on the same tasks (± two "
        "standard errors)",
        "",
    ]
    lines += [*judge(experiment.table, results, likelihoods), ""]
    if baselines:
        words = "by differences in CRPS on the same tasks (± two standard errors)"
        lines += [f"**Against the best baseline**, {words}", ""]
        lines += [*_against_baselines(experiment, results, baselines), ""]
    return "\n".join([*lines, *made_by(everything)])


def _scores(experiment: Weather, results: list[Result], group: str) -> list[str]:
    """The table of a group of targets; times and sizes of models are in the first one."""
    own = group == "all"
    heads = ["model", "GE", "grid", "log-likelihood", "RMSE", "CRPS", "90 %", "normalised"]
    heads += ["forward, ms", "parameters", "minutes"] * own
    body = []
    for r in results:
        scores = r["groups"][group]
        error, uncertainty = rmse(scores)
        crps = np.array(scores["crps"]).mean(1)
        line = [
            *_names(experiment, r),
            number(*mean_over_times(np.array(scores["log_likelihood"]))),
            number(float(error.mean()), float(uncertainty.mean())),
            number(*mean_over_times(crps)),
            f"{100 * mean_and_error(scores['inside'])[0]:.1f} %",
            number(mean_and_error(scores["normalised"])[0]),
        ]
        if own:
            line += _costs(r) if "parameters" in r else [""] * 3
        body.append(line)
    return markdown(heads, body)


def _places(experiment: Weather, results: list[Result]) -> list[str]:
    """A column per place: an edge of the grid should not be worse than elsewhere."""
    there = {key: words for key, words in PLACES.items() if key in results[0]["groups"]}
    body = []
    for r in results:
        found = [rmse(r["groups"][key]) for key in there]
        body.append([_label(experiment, r), *(number(float(a[0]), float(b[0])) for a, b in found)])
    return markdown(["model", *there.values()], body)


def _beside_paper(experiment: Weather, results: list[Result]) -> list[str]:
    """Log-likelihood and the paper's RMSE of every row of the paper."""
    heads = ["model", "log-likelihood", "in the paper", "RMSE as in the paper", "in the paper"]
    body = []
    for r in results:
        if r["row"] in NUMBERS[experiment.table]:
            scores, (likelihood, error) = r["groups"]["all"], NUMBERS[experiment.table][r["row"]]
            own = [mean_and_error(scores[k])[0] for k in ("log_likelihood", "paper_rmse")]
            line = [number(own[0]), number(likelihood), number(own[1]), number(error)]
            body.append([_label(experiment, r), *line])
    return markdown(heads, body)


def _costs(result: Result) -> list[str]:
    millions = f"{result['parameters'] / 1e6:.2f} M"
    return [f"{result['forward_ms']:.0f}", millions, f"{result['minutes']:.1f}"]


def _names(experiment: Weather, result: Result) -> tuple[str, str, str]:
    """Model, grid encoder and grid of a row; the name of a baseline."""
    if "parameters" not in result:
        return f"*{result['row']}*", "", ""
    model, encoder, grid = experiment.described(result["row"])
    return model + f", seed {result['seed']}" * bool(result["seed"]), encoder, grid


def _label(experiment: Weather, result: Result) -> str:
    return ", ".join(part for part in _names(experiment, result) if part)


def _crps(result: Result, group: str) -> np.ndarray:
    return np.array(result["groups"][group]["crps"]).mean(1)


def _against_baselines(
    experiment: Weather, results: list[Result], baselines: list[Result]
) -> list[str]:
    """The best row and the best baseline of every group that the paper's numbers are about."""
    lines = []
    for group, words in GROUPS.items():
        rows = [r for r in results if group in r["groups"]]
        others = [r for r in baselines if group in r["groups"]]
        if not rows or not others:
            continue
        row, other = (min(some, key=lambda r: _crps(r, group).mean()) for some in (rows, others))
        mean, error = difference(_crps(other, group), _crps(row, group))
        relative = 100 / _crps(other, group).mean()
        found = "less" if mean > 0 else "more"
        lines.append(
            f"- {words}: {_label(experiment, row)} has {relative * abs(mean):.1f} ± "
            f"{relative * ERRORS * error:.1f} % {found} CRPS than {other['row']}."
        )
    return lines
