// Maps on a canvas: a field without visible cells, graticule, coastlines and stations.
"use strict";

const EARTH_RADIUS = 6371;

function projectionFor(region, width, height, margin) {
  const { south, north, west, east } = region, middle = (west + east) / 2;
  const extent = [[margin.left, margin.top], [width - margin.right, height - margin.bottom]];
  if (region.around) {
    return d3.geoEqualEarth().rotate([-middle, 0]).fitExtent(extent, { type: "Sphere" });
  }
  const centre = (south + north) / 2;
  let projection;
  if (Math.max(Math.abs(south), Math.abs(north)) > 80) {
    projection = d3.geoAzimuthalEqualArea().rotate([-middle, -centre]);
  } else if (Math.abs(centre) < 12) {
    projection = d3.geoEquirectangular().rotate([-middle, 0]);
  } else {
    const inset = (north - south) / 6;
    projection = d3.geoConicConformal().rotate([-middle, 0]).parallels([south + inset, north - inset]);
  }
  return projection.fitExtent(extent, { type: "MultiPoint", coordinates: outline(region) });
}

function outline({ south, north, west, east }) {
  const points = [], n = 40;
  for (let i = 0; i < n; i++) points.push([west + ((east - west) * i) / n, south]);
  for (let i = 0; i < n; i++) points.push([east, south + ((north - south) * i) / n]);
  for (let i = 0; i < n; i++) points.push([east - ((east - west) * i) / n, north]);
  for (let i = 0; i < n; i++) points.push([west, north - ((north - south) * i) / n]);
  return points;
}

// A field of numbers painted pixel by pixel, with cubic interpolation between grid points.
class Raster {
  constructor(grid, projection, region, width, height, coarse) {
    const nx = (this.nx = Math.ceil(width / coarse)), ny = (this.ny = Math.ceil(height / coarse));
    Object.assign(this, { grid, around: region.around, width, height });
    this.columns = new Float32Array(nx * ny).fill(NaN);
    this.rows = new Float32Array(nx * ny);
    for (let j = 0; j < ny; j++) {
      for (let i = 0; i < nx; i++) {
        const found = projection.invert([(i + 0.5) * coarse, (j + 0.5) * coarse]);
        if (!found) continue;
        const at = this.position(found[1], found[0], region);
        if (at) [this.rows[j * nx + i], this.columns[j * nx + i]] = at;
      }
    }
    this.canvas = document.createElement("canvas");
    [this.canvas.width, this.canvas.height] = [nx, ny];
    this.context = this.canvas.getContext("2d");
    this.image = this.context.createImageData(nx, ny);
  }

  position(lat, lon, region) {
    return gridPosition(this.grid, region, lat, lon);
  }

  paint(values, start, scale) {
    const { rows, columns, image } = this, { data } = image;
    for (let k = 0; k < rows.length; k++) {
      const value = Number.isNaN(columns[k]) ? NaN : interpolate(this.grid, this.around, values, start, rows[k], columns[k]);
      if (Number.isNaN(value)) {
        data[4 * k + 3] = 0;
        continue;
      }
      const i = scale.index(value);
      data[4 * k] = scale.table[i];
      data[4 * k + 1] = scale.table[i + 1];
      data[4 * k + 2] = scale.table[i + 2];
      data[4 * k + 3] = 255;
    }
    this.context.putImageData(image, 0, 0);
  }
}

function gridPosition(grid, region, lat, lon) {
  let east = lon;
  while (east < region.west) east += 360;
  while (east >= region.west + 360) east -= 360;
  const row = (lat - grid.lat.first) / grid.lat.step, column = (east - grid.lon.first) / grid.lon.step;
  const inside = row >= -0.5 && row <= grid.lat.size - 0.5;
  if (!inside || (!region.around && !(column >= -0.5 && column <= grid.lon.size - 0.5))) return null;
  return [row, column];
}

const WEIGHTS = new Float64Array(8);

function cubic(t, offset) { // Catmull and Rom
  WEIGHTS[offset] = ((2 - t) * t - 1) * t * 0.5;
  WEIGHTS[offset + 1] = ((3 * t - 5) * t * t + 2) * 0.5;
  WEIGHTS[offset + 2] = ((4 - 3 * t) * t + 1) * t * 0.5;
  WEIGHTS[offset + 3] = (t - 1) * t * t * 0.5;
}

function interpolate(grid, around, values, start, row, column) {
  const ny = grid.lat.size, nx = grid.lon.size;
  const j = Math.floor(row), i = Math.floor(column);
  cubic(row - j, 0);
  cubic(column - i, 4);
  let sum = 0, weight = 0, whole = true;
  for (let b = 0; b < 4; b++) {
    const y = Math.min(ny - 1, Math.max(0, j + b - 1)) * nx + start;
    for (let a = 0; a < 4; a++) {
      let x = i + a - 1;
      x = around ? ((x % nx) + nx) % nx : Math.min(nx - 1, Math.max(0, x));
      const value = values[y + x];
      if (value === value) sum += WEIGHTS[b] * WEIGHTS[4 + a] * value;
      else whole = false;
    }
  }
  if (whole) return sum;
  sum = 0; // linear among the known neighbours
  for (let b = 0; b < 2; b++) {
    const y = Math.min(ny - 1, Math.max(0, j + b)) * nx + start;
    for (let a = 0; a < 2; a++) {
      let x = i + a;
      x = around ? ((x % nx) + nx) % nx : Math.min(nx - 1, Math.max(0, x));
      const w = (b ? row - j : 1 - row + j) * (a ? column - i : 1 - column + i);
      if (values[y + x] === values[y + x]) {
        sum += w * values[y + x];
        weight += w;
      }
    }
  }
  return weight > 0.02 ? sum / weight : NaN; // up to a cell beyond, so that edges are straight
}

class MapView {
  constructor(holder, report, options) {
    Object.assign(this, { holder, report, region: report.region, coarse: 1, labels: true }, options);
    this.canvas = holder.querySelector("canvas");
  }

  begin() { // once its owner knows it
    this.resize();
    new ResizeObserver(() => this.resize()).observe(this.holder);
    return this;
  }

  resize() {
    const width = Math.round(this.holder.clientWidth);
    if (!width || width === this.width) return;
    const { south, north, west, east } = this.region;
    const shape = this.region.around ? 0.5 : (north - south) / ((east - west) * Math.cos(((south + north) * Math.PI) / 360));
    const margin = this.labels && !this.region.around ? { left: 44, right: 10, top: 10, bottom: 26 } : { left: 2, right: 2, top: 2, bottom: 2 };
    const inner = width - margin.left - margin.right;
    const height = Math.round(Math.min(Math.max(inner * shape, 0.35 * inner), 1.25 * inner, 620) + margin.top + margin.bottom);
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    Object.assign(this, { width, height, ratio, margin });
    [this.canvas.width, this.canvas.height] = [width * ratio, height * ratio];
    this.canvas.style.height = `${height}px`;
    this.projection = projectionFor(this.region, width, height, margin);
    this.raster = this.grid ? new Raster(this.grid, this.projection, this.region, width, height, this.coarse) : null;
    this.draw();
  }

  point(lat, lon) {
    return this.projection([lon, lat]);
  }

  draw() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const context = this.canvas.getContext("2d"), path = d3.geoPath(this.projection, context);
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    const frame = () => {
      context.beginPath();
      if (this.region.around) return path({ type: "Sphere" });
      outline(this.region).forEach((at, i) => {
        const [x, y] = this.projection(at);
        if (i) context.lineTo(x, y);
        else context.moveTo(x, y);
      });
      context.closePath();
    };
    context.save();
    frame();
    context.fillStyle = colour("sea");
    context.fill();
    context.clip();
    if (this.raster && this.paint(this.raster)) {
      context.imageSmoothingEnabled = true;
      context.imageSmoothingQuality = "high";
      const { canvas } = this.raster;
      context.drawImage(canvas, 0, 0, canvas.width * this.coarse, canvas.height * this.coarse);
    }
    const lines = this.graticule();
    context.beginPath();
    path({ type: "MultiLineString", coordinates: [...lines.meridians, ...lines.parallels].map((line) => line.points) });
    context.strokeStyle = colour("graticule");
    context.lineWidth = 0.7;
    context.stroke();
    context.beginPath();
    path(this.report.coast);
    context.strokeStyle = colour("coast");
    context.lineWidth = this.region.around ? 0.7 : 1.1;
    context.stroke();
    if (this.over) this.over(context, colour);
    context.restore();
    frame();
    context.strokeStyle = colour("frame");
    context.lineWidth = 1;
    context.stroke();
    if (this.labels && !this.region.around) this.label(context, lines, colour("muted"));
    if (this.above) this.above(context, colour);
  }

  graticule() {
    const { south, north, west, east } = this.region, n = 40;
    const along = (low, high, at) => Array.from({ length: n + 1 }, (_, i) => at(low + ((high - low) * i) / n));
    const meridians = niceTicks(west, east, this.width > 500 ? 6 : 4).map((lon) => ({ value: lon, points: along(south, north, (lat) => [lon, lat]) }));
    const parallels = niceTicks(south, north, 5).map((lat) => ({ value: lat, points: along(west, east, (lon) => [lon, lat]) }));
    return { meridians, parallels };
  }

  label(context, { meridians, parallels }, ink) {
    const { south, west } = this.region;
    context.fillStyle = ink;
    context.font = "11.5px system-ui, sans-serif";
    context.textAlign = "center";
    context.textBaseline = "top";
    for (const { value } of meridians) {
      const [x, y] = this.projection([value, south]);
      if (x < 24 || x > this.width - 24) continue;
      context.fillText(degrees(((value + 540) % 360) - 180, "E", "W"), x, y + 6);
    }
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const { value } of parallels) {
      const [x, y] = this.projection([west, value]);
      if (y < 10 || y > this.height - this.margin.bottom - 4) continue;
      context.fillText(degrees(value, "N", "S"), x - 6, y);
    }
  }
}

function dot(context, x, y, radius, fill, ring, outer) {
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  if (outer) {
    context.lineWidth = 3.2;
    context.strokeStyle = outer;
    context.stroke();
  }
  context.fillStyle = fill;
  context.fill();
  if (ring) {
    context.lineWidth = 1.3;
    context.strokeStyle = ring;
    context.stroke();
  }
}
