// The map with its layers, times and stations, and the series of the selected station.
"use strict";

const LAYERS = {
  mean: "mean",
  std: "standard deviation",
  chance: "probability",
  error: "predicted − observed",
  support: "distance to the nearest observation",
};
const HINTS = {
  mean: "Large dots are observations at held-out stations in the colours of the field: the better the prediction, the less they stand out. Small dots are what the model was given.",
  std: "How uncertain the model is about a single observation. Small dots are what the model was given, rings the held-out stations.",
  chance: "How likely a higher value is. Large dots are held-out stations: filled where the observation was higher, empty where it was not.",
  error: "Errors at held-out stations: red where the prediction is too high, blue where it is too low.",
  support: "How far the nearest observation of the same time is away.",
};

class Explorer {
  constructor(report, pick = null) { // pick(lat, lon): what a click on any place does, if anything
    const state = { variable: 0, layer: report.grid ? "mean" : "error", time: report.first, station: 0 };
    Object.assign(this, { report, state, pick, cross: null });
    this.tip = find("#field .tip");
    this.scales = report.variables.map((_, v) => this.scalesOf(v));
    this.own = new Map();
    this.map = new MapView(find("#field"), report, {
      grid: report.grid,
      paint: (raster) => this.paint(raster),
      over: (context, colour) => this.drawStations(context, colour),
      above: (context, colour) => this.drawCross(context, colour),
    });
    this.map.begin();
    this.series = new StationSeries(find("#series"), report, {
      hover: (i) => this.showNow(i),
      pick: (seconds) => this.goTo(seconds),
    });
    this.state.station = this.worstNow();
    this.listen();
    this.set({});
  }

  replace(report) { // other data of the same region and variables
    Object.assign(this, { report, own: new Map() });
    this.map.report = this.series.report = report;
    this.scales = report.variables.map((_, v) => this.scalesOf(v));
    Object.assign(this.state, { time: report.first, station: 0 });
    this.state.station = this.worstNow();
    this.set({});
  }

  get stations() { // whether there are any that were held out
    return this.report.stations.names.length > 0;
  }

  get unit() {
    return this.report.variables[this.state.variable].unit;
  }

  get decimals() { // no finer than the field varies, or than it is uncertain
    const { mean, std } = this.scales[this.state.variable];
    return Math.max(decimalsFor(Math.max(mean.high - mean.low, std ? std.high : 0)) - 1, 0);
  }

  scalesOf(v) {
    const { report } = this, own = report.fields && report.fields[v], series = report.series[v];
    const observed = series ? series.observed : new Float32Array();
    const error = observed.map((y, i) => Math.abs(series.mean[i] - y));
    const largest = quantileRange([error], 0.01)[1];
    const made = {
      mean: new ColourScale("mean", ...quantileRange(own ? [own.mean, observed] : [observed], 0.004)),
      error: new ColourScale("error", -largest, largest),
    };
    if (own) {
      made.std = new ColourScale("std", ...quantileRange([own.std], 0.012));
      made.support = new ColourScale("support", 0, quantileRange([own.support], 0.002)[1]);
      if (own.chance) made.chance = new ColourScale("chance", 0, 1);
    }
    return made;
  }

  scale() { // the colours of the map: of its time alone, or of all times
    const { variable, layer, time } = this.state, all = this.scales[variable][layer], same = find("#same");
    if (!["mean", "std"].includes(layer) || !same || same.checked) return all;
    const key = `${variable} ${layer} ${time}`;
    if (!this.own.has(key)) {
      const { lat, lon } = this.report.grid, size = lat.size * lon.size;
      const now = [this.report.fields[variable][layer].subarray(time * size, (time + 1) * size)];
      if (layer === "mean") now.push(Float32Array.from(this.report.stations.names, (_, i) => this.at("observed", i)));
      this.own.set(key, new ColourScale(layer, ...quantileRange(now, layer === "mean" ? 0.002 : 0.012)));
    }
    return this.own.get(key);
  }

  // ---- what is where ----

  step() { // the column of the series that belongs to the time of the map
    const { times } = this.report;
    return times ? this.report.stations.times.indexOf(times[this.state.time]) : 0;
  }

  at(name, station, step = this.step()) {
    const { times } = this.report.stations;
    return this.report.series[this.state.variable][name][station * (times ? times.length : 1) + step];
  }

  placeOf(station) {
    const { lat, lon, times } = this.report.stations, { moving } = this.report;
    if (moving) {
      const i = station * times.length + this.step();
      if (!Number.isNaN(moving.lat[i])) return [moving.lat[i], moving.lon[i]];
    }
    return [lat[station], lon[station]];
  }

  worstNow() {
    let worst = 0, most = -1;
    this.report.stations.names.forEach((_, i) => {
      const error = Math.abs(this.at("mean", i) - this.at("observed", i));
      if (error > most) [worst, most] = [i, error];
    });
    return worst;
  }

  nearestStation(x, y, within) {
    let best = null, least = within * within;
    this.report.stations.names.forEach((_, i) => {
      const [a, b] = this.map.point(...this.placeOf(i)), size = (a - x) ** 2 + (b - y) ** 2;
      if (size < least) [best, least] = [i, size];
    });
    return best;
  }

  nearestObservation(lat, lon) {
    const { context, observed } = this.report, values = observed[this.state.variable];
    if (!values) return null;
    const n = context.names.length;
    let best = null;
    for (let i = 0; i < n; i++) {
      const value = values[this.state.time * n + i];
      if (Number.isNaN(value)) continue;
      const distance = kilometres(lat, lon, context.lat[i], context.lon[i]);
      if (!best || distance < best.distance) best = { distance, value, name: context.names[i] };
    }
    return best;
  }

  // ---- drawing ----

  paint(raster) {
    const { variable, layer, time } = this.state;
    if (layer === "error") return false;
    const { lat, lon } = this.report.grid;
    raster.paint(this.report.fields[variable][layer], time * lat.size * lon.size, this.scale());
    return true;
  }

  drawStations(context, colour) {
    const { report, state } = this, colours = this.scale();
    const many = Math.min(1, Math.sqrt(45 / report.stations.names.length));
    const size = Math.max(0.5, many * (this.map.width < 480 ? 0.7 : 1));
    if (find("#dots").checked) {
      const values = report.observed[state.variable], n = report.context.names.length;
      const bright = ["std", "support", "chance"].includes(state.layer);
      for (let i = 0; i < n && values; i++) {
        if (Number.isNaN(values[state.time * n + i])) continue;
        const [x, y] = this.map.point(report.context.lat[i], report.context.lon[i]);
        if (state.layer === "error") dot(context, x, y, 1.8 * size, colour("muted"));
        else dot(context, x, y, 2 * size, bright ? "#1b1b1b" : "#ffffff", bright ? "#ffffff99" : "#00000099");
      }
    }
    if (!find("#dots").checked && state.layer !== "error") return;
    report.stations.names.forEach((_, i) => {
      const [observed, mean] = [this.at("observed", i), this.at("mean", i)];
      if (!Number.isFinite(observed)) return;
      const [x, y] = this.map.point(...this.placeOf(i));
      if (state.layer === "mean") dot(context, x, y, 6 * size, colours.css(observed), "#111111", "#ffffffdd");
      else if (state.layer === "error") dot(context, x, y, 8 * size, colours.css(mean - observed), colour("ink"));
      else if (state.layer === "chance") dot(context, x, y, 6 * size, observed > report.variables[state.variable].threshold ? "#08306b" : "#ffffff", "#111111", "#ffffffdd");
      else dot(context, x, y, 5 * size, "transparent", "#111111", "#ffffffcc");
    });
  }

  drawCross(context, colour) {
    const chosen = this.place || (this.stations ? this.placeOf(this.state.station) : null);
    if (chosen) {
      const [x, y] = this.map.point(...chosen);
      context.beginPath();
      context.arc(x, y, 12, 0, 2 * Math.PI);
      context.lineWidth = 5;
      context.strokeStyle = "#ffffffcc";
      context.stroke();
      context.lineWidth = 2.4;
      context.strokeStyle = colour("accent-map");
      context.stroke();
    }
    if (!this.cross) return;
    const [a, b] = this.cross;
    context.beginPath();
    for (const [dx, dy] of [[1, 0], [-1, 0], [0, 1], [0, -1]]) {
      context.moveTo(a + 4 * dx, b + 4 * dy);
      context.lineTo(a + 12 * dx, b + 12 * dy);
    }
    context.lineWidth = 4;
    context.strokeStyle = "#ffffffcc";
    context.stroke();
    context.lineWidth = 2;
    context.strokeStyle = "#111111";
    context.stroke();
  }

  // ---- what is selected ----

  set(changes) {
    Object.assign(this.state, changes);
    const { report } = this, { name, threshold } = report.variables[this.state.variable];
    const chance = find("input[name=layer][value=chance]");
    if (chance) chance.parentElement.hidden = threshold === null; // a Gaussian variable has none
    if (this.state.layer === "chance" && threshold === null) this.state.layer = "mean";
    const { variable, layer, time, station } = this.state;
    const unit = { support: "km", chance: "" }[layer] ?? this.unit;
    const more = `probability of ${name} > ${withUnit(String(threshold), this.unit)}`;
    const title = { support: LAYERS.support, chance: more }[layer] || `${name}: ${LAYERS[layer]}`;
    this.scale().legend(find("#legend"), unit ? `${title} (${unit})` : title);
    find("#hint").textContent = HINTS[layer] + (report.times ? " Times are UTC." : "");
    const radio = find(`input[name=layer][value=${layer}]`);
    if (radio) radio.checked = true;
    if (find("#time")) {
      find("#time").value = time;
      find("#time").setAttribute("aria-valuetext", report.labels[time]);
      find("#when").textContent = report.labels[time];
    }
    this.map.draw();
    if (this.changed) this.changed();
    if (!this.stations) return;
    find("#station").value = station;
    this.series.set(variable, station, report.times ? report.times[time] : null);
    this.showNow(null);
  }

  choose(x, y, within) { // a station, or any place where the page takes those
    const station = this.nearestStation(x, y, within), found = this.map.projection.invert([x, y]);
    if (this.pick && found && this.describe(x, y)) {
      this.place = station !== null && within < Infinity ? this.placeOf(station) : [found[1], found[0]];
      this.pick(...this.place);
    }
    if (station !== null && (!this.pick || within < Infinity)) this.set({ station });
    else this.map.draw();
  }

  showNow(step) {
    const { report, state } = this, at = step === null || step === undefined ? this.step() : step;
    const seconds = report.stations.times && report.stations.times[at], d = this.decimals + 1;
    const [observed, mean] = ["observed", "mean"].map((n) => this.at(n, state.station, at));
    const [low, high] = ["q05", "q95"].map((n) => this.at(n, state.station, at));
    const when = seconds === null || seconds === undefined ? "" : timeText(seconds);
    if (!Number.isFinite(observed)) {
      fillRows(find("#now"), [[when || "now", "not observed"]]);
      return;
    }
    fillRows(find("#now"), [
      ...(when ? [["time", when]] : []),
      ["observed", withUnit(fixed(observed, d), this.unit)],
      ["predicted mean", withUnit(fixed(mean, d), this.unit)],
      ["90 % interval", withUnit(`${fixed(low, d)} to ${fixed(high, d)}`, this.unit)],
      ["error", withUnit((mean - observed > 0 ? "+" : "") + fixed(mean - observed, d), this.unit)],
    ]);
  }

  goTo(seconds) {
    const { times } = this.report;
    if (!times) return;
    let best = 0;
    times.forEach((t, i) => {
      if (Math.abs(t - seconds) < Math.abs(times[best] - seconds)) best = i;
    });
    this.set({ time: best });
  }

  describe(x, y) {
    const found = this.map.projection.invert([x, y]), { report, state } = this;
    if (!found) return null;
    const { south, north, west, east } = report.region, [lon, lat] = found;
    const turned = lon < west ? lon + 360 : lon >= west + 360 ? lon - 360 : lon;
    if (lat < south || lat > north || turned < west || turned > east) return null;
    const rows = [["", place(lat, lon)]], d = this.decimals + 1, { unit } = this;
    const at = report.grid && gridPosition(report.grid, report.region, lat, lon);
    if (at) {
      const own = report.fields[state.variable], size = report.grid.lat.size * report.grid.lon.size;
      const value = (name) => interpolate(report.grid, report.region.around, own[name], state.time * size, ...at);
      if (Number.isFinite(value("mean"))) {
        rows.push(["mean", withUnit(fixed(value("mean"), d), unit)]);
        rows.push(["90 % interval", withUnit(`${fixed(value("low"), d)} to ${fixed(value("high"), d)}`, unit)]);
        rows.push(["standard deviation", withUnit(fixed(value("std"), d), unit)]);
        const { threshold } = report.variables[state.variable];
        if (own.chance) rows.push([`P(> ${withUnit(String(threshold), unit)})`, `${fixed(100 * value("chance"), 0)} %`]);
      }
    }
    const near = this.nearestObservation(lat, lon);
    if (near) rows.push(["nearest observation", `${withUnit(fixed(near.value, d), unit)}, ${fixed(near.distance, 0)} km away, ${near.name}`]);
    const station = this.nearestStation(x, y, 11);
    if (station !== null && Number.isFinite(this.at("observed", station))) {
      const [observed, mean] = [this.at("observed", station), this.at("mean", station)];
      rows.push(["held-out station", report.stations.names[station]]);
      rows.push(["observed there", withUnit(fixed(observed, d), unit)]);
      rows.push(["predicted there", withUnit(fixed(mean, d), unit)]);
    }
    return rows;
  }

  showTip(x, y) {
    const rows = this.describe(x, y);
    this.tip.hidden = !rows;
    if (!rows) return;
    fillRows(this.tip, rows);
    const { offsetWidth: w, offsetHeight: h } = this.tip, { width, height } = this.map;
    const left = x + 18 + w > width ? x - 18 - w : x + 18;
    this.tip.style.left = `${Math.max(2, Math.min(left, width - w - 2))}px`;
    this.tip.style.top = `${Math.max(2, Math.min(y - h / 2, height - h - 2))}px`;
  }

  listen() {
    const { canvas } = this.map;
    for (const radio of findAll("input[name=layer]")) radio.addEventListener("change", () => this.set({ layer: radio.value }));
    find("#dots").addEventListener("change", () => this.map.draw());
    for (const radio of findAll("input[name=series]")) radio.addEventListener("change", () => this.series.show(true));
    if (find("#same")) find("#same").addEventListener("change", () => this.set({}));
    find("#station").addEventListener("change", (event) => this.set({ station: Number(event.target.value) }));
    canvas.addEventListener("pointermove", (event) => this.showTip(event.offsetX, event.offsetY));
    canvas.addEventListener("pointerleave", () => (this.tip.hidden = true));
    canvas.addEventListener("click", (event) => {
      this.choose(event.offsetX, event.offsetY, 18);
    });
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("blur", () => {
      this.cross = null;
      this.tip.hidden = true;
      this.map.draw();
    });
    for (const button of findAll("button[data-station]")) {
      button.addEventListener("click", () => {
        const station = this.report.stations.names.indexOf(button.dataset.station);
        if (station < 0) return;
        this.set({ station });
        if (button.dataset.time) this.goTo(Date.parse(`${button.dataset.time.replace(" ", "T")}${button.dataset.time.length > 10 ? "Z" : "T00:00Z"}`) / 1000);
        find("#map").scrollIntoView();
        find("#station").focus({ preventScroll: true });
      });
    }
    const slider = find("#time");
    if (!slider) return;
    slider.addEventListener("input", () => this.set({ time: Number(slider.value) }));
    player(find("#play"), 700, () => this.set({ time: (this.state.time + 1) % this.report.labels.length }));
  }

  key(event) {
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const { width, height } = this.map, step = steps[event.key];
    this.cross = this.cross || [width / 2, height / 2];
    if (step) {
      const size = event.shiftKey ? 4 : 16;
      this.cross = [this.cross[0] + size * step[0], this.cross[1] + size * step[1]];
      this.cross[0] = Math.max(0, Math.min(width, this.cross[0]));
      this.cross[1] = Math.max(0, Math.min(height, this.cross[1]));
    } else if (event.key === "Enter" || event.key === " ") {
      this.choose(...this.cross, Infinity);
    } else if (event.key === "Escape") {
      this.cross = null;
      this.tip.hidden = true;
      this.map.draw();
      return;
    } else {
      return;
    }
    event.preventDefault();
    this.map.draw();
    this.showTip(...this.cross);
    const rows = this.describe(...this.cross);
    find("#said").textContent = rows ? rows.map(([name, text]) => `${name} ${text}`.trim()).join("; ") : "";
  }
}
