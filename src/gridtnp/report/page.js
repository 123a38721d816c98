// The page: what is selected, and what follows from it. Texts from data are set as text only.
"use strict";

async function start() {
  const report = JSON.parse(find("#report-data").textContent);
  const { variables, stations, context, fields, samples } = report;
  const each = (mapping) =>
    Promise.all(
      variables.map(({ name }) => {
        const own = mapping[name];
        return own === undefined ? null : own.data === undefined ? unpackAll(own) : unpack(own);
      }),
    );
  report.coast = await coastline(report.coastline);
  report.series = await each(stations.values);
  report.observed = await each(context.values);
  report.grid = fields && { lat: fields.lat, lon: fields.lon };
  report.fields = fields && (await each(fields.values));
  report.samples = samples && (await each(samples));
  report.moving = stations.moving ? await unpackAll(stations.moving) : null;
  const explorer = new Explorer(report);
  const moving = report.samples ? new Samples(report, explorer) : null;
  const map = stationMap(report);
  const views = [explorer.map, map, ...(moving ? [moving.map] : [])];
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => views.forEach((view) => view.draw()));
  const choice = find("#variable");
  if (choice) {
    choice.addEventListener("change", () => {
      const v = Number(choice.value);
      for (const part of findAll("[data-variable]")) part.hidden = Number(part.dataset.variable) !== v;
      explorer.set({ variable: v });
      if (moving) moving.update();
    });
  }
  window.gridtnp = { report, explorer, samples: moving }; // for the console, and for tests
  document.documentElement.dataset.ready = "yes";
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

// ---- the stations of the data -------------------------------------------------------------------

function stationMap(report) {
  const map = new MapView(find("#places"), report, { paint: () => false });
  map.over = (context, colour) => {
    const draw = ({ lat, lon }, radius, ink) =>
      lat.forEach((y, i) => dot(context, ...map.point(y, lon[i]), radius, ink, colour("paper")));
    draw(report.context, 3, colour("other"));
    draw(report.stations, 4.5, colour("model"));
  };
  return map.begin();
}

start().catch((error) => {
  const notice = find("#failure");
  notice.textContent = `This browser cannot draw the maps: ${error}`;
  notice.hidden = false;
  throw error;
});
