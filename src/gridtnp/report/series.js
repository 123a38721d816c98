// The series of one station: observations, and the prediction as a fan.
"use strict";

// The times with values; i + 0.5 stands for a gap after i, where lines are broken.
function withGaps(values, times) {
  const known = values.map((v, i) => (v === null ? -1 : i)).filter((i) => i >= 0);
  const steps = known.slice(1).map((i, k) => times[i] - times[known[k]]).sort((a, b) => a - b);
  const usual = steps.length ? steps[Math.floor(steps.length / 2)] : 0;
  return known.flatMap((i, k) => (k + 1 < known.length && times[known[k + 1]] - times[i] > 2.5 * usual ? [i, i + 0.5] : [i]));
}

function timeLabel(seconds, step) {
  const text = new Date(seconds * 1000).toISOString(), day = 86400;
  if (step >= 300 * day) return text.slice(0, 4);
  if (step >= 28 * day) return text.slice(0, 7);
  return step >= day ? text.slice(5, 10) : text.slice(11, 16);
}

class StationSeries {
  constructor(holder, report, listeners) {
    Object.assign(this, { holder, report, listeners });
    new ResizeObserver(() => this.show()).observe(holder);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.show(true));
  }

  set(variable, station, time) {
    const other = variable !== this.variable || station !== this.station;
    Object.assign(this, { variable, station, time });
    this.show(other);
    if (!other && this.plot) this.plot.redraw(false);
  }

  values(name) {
    const { times } = this.report.stations, size = times ? times.length : 1;
    const all = this.report.series[this.variable][name];
    return all.subarray(this.station * size, (this.station + 1) * size);
  }

  show(force) {
    const width = Math.round(this.holder.clientWidth), { times } = this.report.stations;
    if (this.station === undefined || !width || (!force && width === this.width)) return;
    this.width = width;
    if (this.plot) this.plot.destroy();
    this.plot = null;
    if (!times || times.length < 2) return;
    const chosen = document.querySelector("input[name=series]:checked"), mean = this.values("mean");
    const departures = chosen !== null && chosen.value === "departures";
    const keep = (name) => Array.from(this.values(name), (v, i) => (Number.isNaN(v) ? null : departures ? v - mean[i] : v));
    const known = withGaps(keep("mean"), times);
    const pick = (list) => known.map((i) => (Number.isInteger(i) ? list[i] : null));
    const when = known.map((i) => (Number.isInteger(i) ? times[i] : (times[i - 0.5] + times[i + 0.5]) / 2));
    const data = [when, ...["q95", "q05", "q75", "q25", "mean", "observed"].map((n) => pick(keep(n)))];
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const font = "11.5px system-ui, sans-serif";
    const axis = { stroke: colour("muted"), font, grid: { stroke: colour("line"), width: 1 }, ticks: { show: false } };
    const { name, unit } = this.report.variables[this.variable];
    const bare = { stroke: "transparent", width: 0, points: { show: false } };
    const few = known.length < 60;
    this.plot = new uPlot({
      width,
      height: 300,
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      legend: { show: false },
      cursor: { y: false, points: { size: 7 }, drag: { x: true, y: false } },
      scales: { x: { time: true }, y: { range: (u, low, high) => uPlot.rangeNum(low, high, 0.1, false) } },
      axes: [{ ...axis, space: 54, values: (u, splits, _, __, step) => splits.map((t) => timeLabel(t, step)) }, { ...axis, size: 44, values: (u, splits) => splits.map((v) => String(Number(v.toPrecision(6))).replace("-", "−")), label: withUnit(departures ? `${name} − mean` : name, unit && `(${unit})`), labelSize: 20, labelFont: font }],
      series: [
        {},
        { ...bare }, { ...bare }, { ...bare }, { ...bare },
        { stroke: colour("model"), width: 1.8, points: { show: false } },
        { stroke: colour("ink"), width: 0, paths: () => null, points: { show: true, size: few ? 6 : 4, fill: colour("ink"), stroke: colour("paper"), width: 1 } },
      ],
      bands: [
        { series: [1, 2], fill: colour("fan-most") },
        { series: [3, 4], fill: colour("fan-half") },
      ],
      hooks: {
        draw: [(u) => this.mark(u, colour("accent"))],
        setCursor: [(u) => this.listeners.hover(this.at(u, known))],
      },
    }, data, this.holder);
    this.plot.over.addEventListener("click", () => {
      const i = this.at(this.plot, known);
      if (i !== null) this.listeners.pick(times[i]);
    });
  }

  at(u, known) { // the time under the cursor
    const i = u.cursor.idx === null || u.cursor.idx === undefined ? null : known[u.cursor.idx];
    return Number.isInteger(i) ? i : null;
  }

  mark(u, ink) {
    if (this.time === null) return;
    const x = Math.round(u.valToPos(this.time, "x", true));
    if (x < u.bbox.left || x > u.bbox.left + u.bbox.width) return;
    u.ctx.save();
    u.ctx.strokeStyle = ink;
    u.ctx.lineWidth = 1.5 * devicePixelRatio;
    u.ctx.beginPath();
    u.ctx.moveTo(x, u.bbox.top);
    u.ctx.lineTo(x, u.bbox.top + u.bbox.height);
    u.ctx.stroke();
    u.ctx.restore();
  }
}
