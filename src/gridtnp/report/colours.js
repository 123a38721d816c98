// Colour scales that people with colour blindness can read, after viridis and ColorBrewer.
"use strict";

const RAMPS = {
  mean: "440154 472d7b 3b528b 2c728e 21918c 28ae80 5ec962 addc30 fde725",
  std: "fff7f3 fde0dd fcc5c0 fa9fb5 f768a1 dd3497 ae017e 7a0177 49006a",
  support: "ffffd9 edf8b1 c7e9b4 7fcdbb 41b6c4 1d91c0 225ea8 253494 081d58",
  chance: "f7fbff deebf7 c6dbef 9ecae1 6baed6 4292c6 2171b5 08519c 08306b",
  error: "2166ac 4393c3 92c5de d1e5f0 f7f7f7 fddbc7 f4a582 d6604d b2182b",
};

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
