// Joint samples that flow into each other.
"use strict";

// Between two samples of a mean m, m + cos(a) (s1 - m) + sin(a) (s2 - m) has the same covariance.
class Samples {
  constructor(report, explorer) {
    Object.assign(this, { report, explorer, phase: 0 });
    const { lat, lon } = report.grid;
    this.size = lat.size * lon.size;
    this.number = report.samples[0].length / this.size;
    this.mixed = new Float32Array(this.size);
    this.map = new MapView(find("#sample"), report, { grid: report.grid, coarse: 2, paint: (raster) => this.paint(raster) });
    this.map.begin();
    const slider = find("#sample-number");
    slider.max = this.number - 1;
    slider.addEventListener("input", () => this.goTo(Number(slider.value)));
    for (const radio of findAll("input[name=sample-layer]")) radio.addEventListener("change", () => this.update());
    player(find("#sample-play"), 66, () => this.goTo((this.phase + 0.025) % this.number));
    this.update();
  }

  get departure() {
    return find("input[name=sample-layer][value=departure]").checked;
  }

  scale() {
    const v = this.explorer.state.variable;
    if (!this.departure) {
      const start = this.report.first * this.size;
      return new ColourScale("mean", ...quantileRange([this.report.samples[v], this.report.fields[v].mean.subarray(start, start + this.size)], 0.004));
    }
    const size = quantileRange([this.report.fields[v].std], 0.01)[1] * 2;
    return new ColourScale("error", -size, size);
  }

  update() {
    const { name, unit } = this.report.variables[this.explorer.state.variable];
    this.colours = this.scale();
    const title = this.departure ? `${name}: sample − mean` : `${name}: joint sample`;
    this.colours.legend(find("#sample-legend"), unit ? `${title} (${unit})` : title);
    this.goTo(this.phase);
  }

  goTo(phase) {
    this.phase = phase;
    find("#sample-number").value = Math.min(phase, this.number - 1);
    const which = Math.floor(phase) % this.number;
    find("#sample-which").textContent = `sample ${which + 1} of ${this.number}`;
    this.map.draw();
  }

  paint(raster) {
    if (!this.colours) return false;
    const v = this.explorer.state.variable, start = this.report.first * this.size;
    const mean = this.report.fields[v].mean, all = this.report.samples[v];
    const one = Math.floor(this.phase) % this.number, two = (one + 1) % this.number;
    const turn = ((this.phase - Math.floor(this.phase)) * Math.PI) / 2, [c, s] = [Math.cos(turn), Math.sin(turn)];
    const base = this.departure ? 0 : 1;
    for (let k = 0; k < this.size; k++) {
      const m = mean[start + k];
      this.mixed[k] = base * m + c * (all[one * this.size + k] - m) + s * (all[two * this.size + k] - m);
    }
    raster.paint(this.mixed, 0, this.colours);
    return true;
  }
}
