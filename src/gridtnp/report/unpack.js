// Arrays of the page: 16-bit integers, compressed, as base64 text; see packing.py.
"use strict";

const MISSING = 65535;

async function unpack(packed) {
  const bytes = Uint8Array.from(atob(packed.data), (sign) => sign.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const plain = new Uint8Array(await new Response(stream).arrayBuffer());
  const size = plain.length / 2, width = packed.shape[packed.shape.length - 1];
  const values = new Float32Array(size);
  for (let i = 0, code = 0; i < size; i++) {
    if (i % width === 0) code = 0;
    code = (code + plain[i] + 256 * plain[size + i]) & MISSING;
    values[i] = code === MISSING ? NaN : packed.low + packed.step * code;
  }
  return values;
}

async function unpackAll(mapping) {
  const names = Object.keys(mapping);
  const arrays = await Promise.all(names.map((name) => unpack(mapping[name])));
  return Object.fromEntries(names.map((name, i) => [name, arrays[i]]));
}

// All arrays of a report, in place.
async function unpackReport(report) {
  const { variables, stations, context, fields, samples } = report;
  const each = (mapping) =>
    Promise.all(
      variables.map(({ name }) => {
        const own = mapping[name];
        return own === undefined ? null : own.data === undefined ? unpackAll(own) : unpack(own);
      }),
    );
  Object.assign(RAMPS, report.ramps);
  report.coast = await coastline(report.coastline);
  report.series = await each(stations.values);
  report.observed = await each(context.values);
  report.grid = fields && { lat: fields.lat, lon: fields.lon };
  report.fields = fields && (await each(fields.values));
  report.samples = samples && (await each(samples));
  report.moving = stations.moving ? await unpackAll(stations.moving) : null;
  return report;
}

async function coastline({ lon, lat, sizes }) {
  const [x, y] = await Promise.all([unpack(lon), unpack(lat)]), lines = [];
  let first = 0;
  for (const size of sizes) {
    lines.push(Array.from({ length: size }, (_, i) => [x[first + i], y[first + i]]));
    first += size;
  }
  return { type: "MultiLineString", coordinates: lines };
}

// ---- numbers and words --------------------------------------------------------------------------

function decimalsFor(range) {
  return Math.max(0, Math.min(6, 2 - Math.floor(Math.log10(range || 1))));
}

function fixed(value, decimals) {
  if (!Number.isFinite(value)) return "–";
  return value.toFixed(decimals).replace("-", "−").replace(/^−(0(\.0*)?)$/, "$1");
}

function withUnit(text, unit) {
  return unit ? `${text} ${unit}` : text;
}

function degrees(value, positive, negative) {
  const size = Number(Math.abs(value).toFixed(2));
  return `${size}°${size === 0 || size === 180 ? "" : value > 0 ? positive : negative}`;
}

function place(lat, lon) {
  const east = ((lon + 540) % 360) - 180;
  return `${degrees(lat, "N", "S")}, ${degrees(east, "E", "W")}`;
}

function quantileRange(arrays, share) {
  const kept = [];
  for (const array of arrays) {
    const step = Math.max(1, Math.floor(array.length / 40000));
    for (let i = 0; i < array.length; i += step) if (!Number.isNaN(array[i])) kept.push(array[i]);
  }
  kept.sort((a, b) => a - b);
  if (!kept.length) return [0, 1];
  const at = (q) => kept[Math.round(q * (kept.length - 1))];
  const [low, high] = [at(share), at(1 - share)];
  return high > low ? [low, high] : [low - 0.5, low + 0.5];
}

function niceTicks(low, high, about) {
  const rough = (high - low) / about, size = 10 ** Math.floor(Math.log10(rough));
  const step = size * [1, 2, 2.5, 5, 10].find((m) => m * size >= 0.999 * rough);
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) {
    ticks.push(Number((k * step).toPrecision(12)));
  }
  return ticks;
}
