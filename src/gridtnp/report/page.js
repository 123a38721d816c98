// The page: what is selected, and what follows from it. Texts from data are set as text only.
"use strict";

async function start() {
  const report = await unpackReport(JSON.parse(find("#report-data").textContent));
  const explorer = new Explorer(report);
  const moving = report.samples ? new Samples(report, explorer) : null;
  const map = stationMap(report);
  const views = [explorer.map, map, ...(moving ? [moving.map] : [])];
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => views.forEach((view) => view.draw()));
  chooseVariable((variable) => {
    explorer.set({ variable });
    if (moving) moving.update();
  });
  window.gridtnp = { report, explorer, samples: moving }; // for the console, and for tests
  document.documentElement.dataset.ready = "yes";
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
