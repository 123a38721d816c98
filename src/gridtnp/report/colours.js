// Colour scales and their legends.
"use strict";

const RAMPS = {}; // filled from the data of the page: colours from low to high, by layer

class ColourScale {
  constructor(ramp, low, high) {
    Object.assign(this, { low, high, stops: RAMPS[ramp].split(" ") });
    const size = 1024, parts = this.stops.map((hex) => [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16)));
    this.table = new Uint8Array(3 * size);
    for (let i = 0; i < size; i++) {
      const at = (i / (size - 1)) * (parts.length - 1), k = Math.min(Math.floor(at), parts.length - 2);
      for (let c = 0; c < 3; c++) {
        this.table[3 * i + c] = Math.round(parts[k][c] + (at - k) * (parts[k + 1][c] - parts[k][c]));
      }
    }
  }

  index(value) {
    const share = (value - this.low) / (this.high - this.low);
    return 3 * Math.round(1023 * Math.min(1, Math.max(0, share)));
  }

  css(value) {
    const i = this.index(value);
    return `rgb(${this.table[i]} ${this.table[i + 1]} ${this.table[i + 2]})`;
  }

  legend(holder, title) {
    holder.querySelector(".name").textContent = title;
    const colours = this.stops.map((hex) => `#${hex}`).join(", ");
    holder.querySelector(".ramp").style.background = `linear-gradient(to right, ${colours})`;
    const ticks = holder.querySelector(".ticks");
    ticks.replaceChildren();
    for (const value of niceTicks(this.low, this.high, 5)) {
      const tick = document.createElement("span");
      tick.textContent = String(value).replace("-", "−");
      tick.style.left = `${(100 * (value - this.low)) / (this.high - this.low)}%`;
      ticks.append(tick);
    }
  }
}
