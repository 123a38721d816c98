// Elements of the page: finding, filling and playing. Texts from data are set as text only.
"use strict";

const find = (query) => document.querySelector(query);
const findAll = (query) => [...document.querySelectorAll(query)];

function fillRows(holder, rows) {
  holder.replaceChildren(
    ...rows.map(([name, text]) => {
      const line = document.createElement("div");
      for (const [tag, words] of [["span", name], ["b", text]]) {
        const part = document.createElement(tag);
        part.textContent = words;
        line.append(part);
      }
      return line;
    }),
  );
}

function chooseVariable(change) { // shows the sections of the chosen variable, and then changes the rest
  const choice = find("#variable");
  if (!choice) return;
  choice.addEventListener("change", () => {
    const v = Number(choice.value);
    for (const part of findAll("[data-variable]")) part.hidden = Number(part.dataset.variable) !== v;
    change(v);
  });
}

function kilometres(lat1, lon1, lat2, lon2) {
  return EARTH_RADIUS * d3.geoDistance([lon1, lat1], [lon2, lat2]);
}

function timeText(seconds) {
  const text = new Date(seconds * 1000).toISOString().slice(0, 19).replace("T", " ");
  return text.replace(/:00$/, "").replace(/ 00:00$/, "");
}

function player(button, pause, step) {
  let timer = null;
  button.addEventListener("click", () => {
    const playing = timer === null;
    button.setAttribute("aria-pressed", String(playing));
    button.setAttribute("aria-label", playing ? "Pause" : "Play");
    if (playing) {
      timer = setInterval(step, pause);
      step();
    } else {
      clearInterval(timer);
      timer = null;
    }
  });
}
