// What pages do beyond plain HTML. Every page works without it, except live changes and the sliders' immediate effect.
"use strict";

const DAY_MS = 86_400_000;
const SUM = 100;

function days(text) {
  return Math.round(Date.parse(text + "T00:00:00Z") / DAY_MS);
}

// The scrubber chooses a day of the date field: the last day clears it, which shows the present.
function openScrubber(range) {
  const field = document.getElementById(range.dataset.for);
  const first = days(range.dataset.first), last = days(range.dataset.last);
  range.min = first;
  range.max = last;
  range.value = days(range.dataset.at);
  range.hidden = false;
  range.addEventListener("input", () => {
    const day = new Date(Number(range.value) * DAY_MS).toISOString().slice(0, 10);
    field.value = Number(range.value) === last ? "" : day;
  });
}

// The weights add up to 1: what one slider gains, the others lose in proportion.
function openSliders(group) {
  const ranges = [...group.querySelectorAll("input[type=range]")];
  const show = () => ranges.forEach((range) => {
    range.nextElementSibling.value = (Number(range.value) / SUM).toFixed(2);
  });
  ranges.forEach((range) => range.addEventListener("input", () => {
    const others = ranges.filter((other) => other !== range);
    const rest = SUM - Number(range.value);
    const total = others.reduce((sum, other) => sum + Number(other.value), 0);
    const share = total ? Number(others[0].value) / total : 0.5;
    others[0].value = Math.round(rest * share);
    others[1].value = rest - Number(others[0].value);
    show();
  }));
}

// As the server does in marks.py.
function marked(text) {
  return text.replace(/[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Zl}\p{Zp}]/gu,
    (character) => "\u27e6U+" + character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0") + "\u27e7");
}

// Add the changes that the stream sends as rows. All values become text, never HTML.
function openStream(live) {
  const body = document.getElementById("changes");
  const source = new EventSource(live.dataset.stream);
  const kinds = ["stored", "superseded", "deleted", "expired", "forgotten", "consolidated", "restored", "rebuilt"];
  source.onopen = () => { live.textContent = "The log from its start, oldest first. Live: new changes appear below."; };
  source.onerror = () => { live.textContent = "The log from its start, oldest first. The stream is interrupted."; };
  kinds.forEach((kind) => source.addEventListener(kind, (event) => {
    const change = JSON.parse(event.data);
    const row = document.createElement("tr");
    row.className = "new";
    [change.at.slice(0, 16).replace("T", " "), change.kind, change.user_id || "", change.id].forEach((text, place) => {
      const cell = document.createElement("td");
      const value = place === 2 ? document.createElement("bdi") : cell;
      value.textContent = marked(text);
      if (value !== cell) cell.append(value);
      if (place === 3) cell.className = "id";
      row.append(cell);
    });
    body.querySelector(".none")?.remove();
    body.append(row);
    while (body.rows.length > 500) body.rows[0].remove();
  }));
  addEventListener("pagehide", () => source.close());
}

function openParts(root) {
  root.querySelectorAll("input[data-for]").forEach(openScrubber);
  root.querySelectorAll(".sliders").forEach(openSliders);
}

document.addEventListener("DOMContentLoaded", () => {
  openParts(document);
  const live = document.getElementById("live");
  if (live) openStream(live);
});
document.addEventListener("htmx:afterSwap", () => openParts(document));
