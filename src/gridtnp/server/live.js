// The live page: observations that are dropped, and what the server predicts from them.
"use strict";

const DOTS = 50; // each stands for a chance of 2 %
const LEVELS = Array.from({ length: DOTS }, (_, i) => Number(((i + 0.5) / DOTS).toFixed(2)));
const options = JSON.parse(find("#options").textContent);
const live = { observations: null, asked: 0, explorer: null };

// ---- asking the server --------------------------------------------------------------------------

async function ask(address, body) {
  const sent = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  const answer = await fetch(address, body === undefined ? {} : sent);
  if (answer.ok) return answer;
  const failed = await answer.json().catch(() => ({}));
  throw new Error(failed.description || `The server answers ${answer.status}.`);
}

async function busily(work) {
  const turn = ++live.asked;
  find("#busy").hidden = false;
  find("#busy").textContent = "predicting …";
  try {
    return await work();
  } catch (error) {
    say(error.message);
    return null;
  } finally {
    if (turn === live.asked) find("#busy").hidden = true;
  }
}

function say(text) {
  find("#notes").textContent = text;
  find("#notes").hidden = !text;
}

const timeNow = () => {
  const { report, state } = live.explorer;
  return report.times ? new Date(report.times[state.time] * 1000).toISOString().slice(0, 19) : null;
};
const question = (more) => ({ ...(live.observations || {}), ...(timeNow() ? { times: [timeNow()] } : {}), ...more });

// ---- the map ------------------------------------------------------------------------------------

async function load() {
  const report = await (await ask("map", live.observations || undefined)).json();
  say(report.notes.join(" "));
  await unpackReport(report);
  const slider = find("#time"), times = find(".times");
  if (slider) {
    slider.max = report.labels.length - 1;
    times.hidden = report.labels.length < 2 && !report.labels[0];
  }
  find("#station").replaceChildren(
    ...report.stations.names.map((name, i) => {
      const option = document.createElement("option");
      option.value = i;
      option.textContent = name;
      return option;
    }),
  );
  const stations = report.stations.names.length > 0;
  find("#held-out").hidden = !stations;
  find("input[name=layer][value=error]").closest("label").hidden = !stations;
  if (live.explorer) {
    if (!stations && live.explorer.state.layer === "error") live.explorer.state.layer = "mean";
    live.explorer.replace(report);
  } else {
    live.explorer = new Explorer(report, predictAt);
    live.explorer.changed = () => live.explorer.place && live.shown !== key() && predictAt(...live.explorer.place);
  }
  if (live.explorer.place) predictAt(...live.explorer.place);
}

async function useFile(file) {
  if (!file) return;
  const text = await file.text(), source = find("#source").value || options.source;
  const before = live.observations;
  live.observations = { observations: { [source]: text }, keep: options.keep, ...(timeNow() ? { time: timeNow() } : {}) };
  const done = await busily(async () => {
    await load();
    return true;
  });
  if (!done) live.observations = before;
  else find("#from").textContent = file.name;
  find("#reset").hidden = live.observations === null;
}

async function reset() {
  live.observations = null;
  find("#from").textContent = "the observations of this run";
  find("#reset").hidden = true;
  await busily(load);
}

// ---- one place ----------------------------------------------------------------------------------

const key = () => JSON.stringify([live.explorer.place, live.explorer.state.time, live.explorer.state.variable, live.observations !== null]);

async function predictAt(lat, lon) {
  live.shown = key();
  const wanted = live.shown;
  find("#where").textContent = `${place(lat, lon)} …`;
  const quantiles = [...LEVELS, 0.05, 0.25, 0.75, 0.95].sort((a, b) => a - b);
  const levels = live.explorer.report.variables.filter((one) => one.threshold !== null).map((one) => [one.name, [one.threshold]]);
  const what = { at: { lat: [lat], lon: [lon] }, quantiles, exceed: Object.fromEntries(levels) };
  const found = await busily(async () => (await ask("predict", question(what))).json());
  if (wanted !== live.shown) return; // another place was asked for meanwhile
  if (!found) {
    find("#where").textContent = "There is no prediction here.";
    find("#dots-chart").replaceChildren();
    fillRows(find("#values"), []);
    return;
  }
  showDistribution(found, lat, lon);
}

function showDistribution(found, lat, lon) {
  const { explorer } = live, { name, unit, threshold, chance } = explorer.report.variables[explorer.state.variable];
  const value = (what) => found.ranges[`${name}_${what}`].values[0];
  const higher = chance === null ? null : found.ranges[chance].values[0];
  const level = (q) => value(`q${q.toFixed(2).slice(2)}`);
  const d = explorer.decimals + 1, text = (number) => withUnit(fixed(number, d), unit);
  const when = explorer.report.times ? `, ${explorer.report.labels[explorer.state.time]}` : "";
  find("#where").textContent = `${place(lat, lon)}${when}. Each of the ${DOTS} dots is a chance of ${100 / DOTS} %.`;
  live.distribution = { lat, lon, mean: value("mean"), std: value("std"), low: level(0.05), high: level(0.95), chance: higher };
  if (value("mean") === null) {
    find("#dots-chart").replaceChildren();
    fillRows(find("#values"), [["", "outside of the model's area"]]);
    return;
  }
  drawDots(LEVELS.map(level), value("mean"), [level(0.05), level(0.95)], unit ? `${name} (${unit})` : name);
  const support = value("support");
  fillRows(find("#values"), [
    ["mean", text(value("mean"))],
    ["standard deviation", text(value("std"))],
    ["50 % interval", withUnit(`${fixed(level(0.25), d)} to ${fixed(level(0.75), d)}`, unit)],
    ["90 % interval", withUnit(`${fixed(level(0.05), d)} to ${fixed(level(0.95), d)}`, unit)],
    ...(higher === null ? [] : [[`P(> ${withUnit(String(threshold), unit)})`, `${fixed(100 * higher, 0)} %`]]),
    ["nearest observation", support === null ? "none" : `${fixed(support, 0)} km away`],
  ]);
}

// Quantiles as dots that are stacked where they are dense.
function drawDots(quantiles, mean, [low, high], title) {
  const width = 340, left = 14, columns = 24, radius = 5.4, most = 104;
  const [first, last] = [quantiles[0], quantiles[DOTS - 1]], span = last - first || 1;
  const ends = [first - 0.06 * span, last + 0.06 * span];
  const x = (value) => left + ((value - ends[0]) / (ends[1] - ends[0])) * (width - 2 * left);
  const bin = span / columns, stacks = new Map();
  const shape = (tag, attributes, text) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  for (const q of quantiles) {
    const column = Math.min(columns - 1, Math.floor((q - first) / bin));
    stacks.set(column, [...(stacks.get(column) || []), q]);
  }
  const places = [...stacks].flatMap(([column, values]) => { // equal values, such as no rain, stand where they are
    const same = values.length > 1 && values[0] === values[values.length - 1];
    return values.map((q, height) => [x(same ? q : first + (column + 0.5) * bin), height]);
  });
  const tallest = Math.max(...[...stacks.values()].map((values) => values.length)), step = Math.min(2 * radius, most / tallest);
  const bottom = 14 + step * tallest, chart = shape("svg", { viewBox: `0 0 ${width} ${bottom + 42}` });
  chart.append(shape("line", { class: "axis", x1: left, x2: width - left, y1: bottom, y2: bottom }));
  chart.append(shape("line", { class: "interval", x1: x(low), x2: x(high), y1: bottom, y2: bottom }));
  for (const [cx, height] of places) chart.append(shape("circle", { cx, cy: bottom - 8 - step * height, r: Math.min(radius, step / 2) - 0.3 }));
  chart.append(shape("line", { class: "mean", x1: x(mean), x2: x(mean), y1: bottom - 5, y2: bottom + 5 }));
  for (const tick of niceTicks(ends[0], ends[1], 5)) chart.append(shape("text", { x: x(tick), y: bottom + 19 }, String(tick).replace("-", "−")));
  chart.append(shape("text", { x: width / 2, y: bottom + 37 }, title));
  find("#dots-chart").replaceChildren(chart);
}

// ---- downloads ----------------------------------------------------------------------------------

async function finished(answer) { // also if it is a job
  if (answer.status !== 202) return answer;
  const { id } = await answer.json();
  for (;;) {
    const job = await (await ask(`jobs/${id}`)).json();
    if (job.status === "successful") return ask(`jobs/${id}/results`);
    if (job.status !== "accepted" && job.status !== "running") throw new Error(job.message || `The job is ${job.status}.`);
    find("#busy").textContent = `predicting … ${job.progress} %`;
    await new Promise((resolve) => setTimeout(resolve, 300));
  }
}

async function download(f, name) {
  const { report } = live.explorer, { lat, lon } = report.grid, end = ({ first, step, size }) => first + step * (size - 1);
  const step = Number(Math.min(lat.step, lon.step).toPrecision(3));
  const box = { lat: [lat.first, end(lat)], lon: [lon.first, end(lon)], step };
  await busily(async () => {
    const blob = await (await finished(await ask("predict", question({ grid: box, f })))).blob();
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    live.downloaded = { name, size: blob.size, blob };
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  });
}

// ---- listening ----------------------------------------------------------------------------------

async function startLive() {
  await busily(load);
  if (!live.explorer) return;
  const body = document.documentElement;
  for (const name of ["dragenter", "dragover"]) {
    body.addEventListener(name, (event) => {
      event.preventDefault();
      body.classList.add("over");
    });
  }
  body.addEventListener("dragleave", () => body.classList.remove("over"));
  body.addEventListener("drop", (event) => {
    event.preventDefault();
    body.classList.remove("over");
    useFile(event.dataTransfer.files[0]);
  });
  find("#file").addEventListener("change", (event) => useFile(event.target.files[0]));
  find("#reset").addEventListener("click", reset);
  find("#netcdf").addEventListener("click", () => download("netCDF", "predictions.nc"));
  find("#csv").addEventListener("click", () => download("CSV", "predictions.csv"));
  chooseVariable((variable) => live.explorer.set({ variable }));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => live.explorer.map.draw());
  window.gridtnp = live; // for the console, and for tests
  body.dataset.ready = "yes";
}

startLive();
