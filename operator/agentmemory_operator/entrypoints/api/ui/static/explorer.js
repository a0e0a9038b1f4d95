// What pages do beyond plain HTML. Every page works without it, except live changes, the slider for the day and its
// chart, the immediate effect of the weights' sliders, and the buttons that copy a command.
"use strict";

const DAY_MS = 86_400_000;
const SUM = 100;

function days(text) {
  return Math.round(Date.parse(text + "T00:00:00Z") / DAY_MS);
}

function dayText(day) {
  return new Date(day * DAY_MS).toISOString().slice(0, 10);
}

// The scrubber chooses a day of the date field: the last day clears it, which shows the present.
function openScrubber(range) {
  const field = document.getElementById(range.dataset.for);
  const first = days(range.dataset.first), last = days(range.dataset.last);
  const show = () => {
    const text = dayText(Number(range.value));
    range.nextElementSibling.value = text;
    range.setAttribute("aria-valuetext", text);
  };
  range.min = first;
  range.max = last;
  range.value = days(range.dataset.at);
  range.closest("label").hidden = false;
  range.addEventListener("input", () => {
    show();
    field.value = Number(range.value) === last ? "" : dayText(Number(range.value));
  });
  range.addEventListener("change", () => field.dispatchEvent(new Event("change", { bubbles: true })));
  field.addEventListener("input", () => {
    range.value = field.value ? days(field.value) : last;
    range.dispatchEvent(new Event("moved"));
    show();
  });
  show();
}

// Bars of the memories by day, with a line at the day of the scrubber. A click on a day moves the scrubber there.
function openPlot(box) {
  // The chart is a second view of the table: without its script, the table remains.
  if (typeof uPlot === "undefined") return;
  const range = document.getElementById(box.dataset.range), hovered = document.getElementById("hovered");
  const starts = box.dataset.starts.split(",").map(Number), counts = box.dataset.counts.split(",").map(Number);
  const width = starts.length > 1 ? starts[1] - starts[0] : 1;
  const token = (name) => getComputedStyle(box).getPropertyValue(name);
  const axis = { stroke: () => token("--soft"), ticks: { stroke: () => token("--line") }, grid: { stroke: () => token("--line") } };
  const clamp = (day) => Math.min(Math.max(day, Number(range.min)), Number(range.max));
  const dayAt = (plot) => clamp(Math.floor(plot.posToVal(plot.cursor.left, "x") + 0.5));
  const nameOf = (place) => dayText(starts[place]) + (width > 1 ? " to " + dayText(starts[place] + width - 1) : "");
  const drawDay = (plot) => {
    const x = plot.valToPos(Number(range.value), "x", true);
    plot.ctx.fillStyle = token("--bad");
    plot.ctx.fillRect(x - devicePixelRatio, plot.bbox.top, 2 * devicePixelRatio, plot.bbox.height);
  };
  const plot = new uPlot({
    width: box.clientWidth || 600,
    height: 140,
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false }, points: { show: false } },
    scales: { x: { time: false, range: [starts[0] - 0.5, starts[starts.length - 1] + width - 0.5] }, y: { range: (_, low, high) => [0, high || 1] } },
    axes: [
      { ...axis, values: (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? dayText(tick) : "")), space: 90 },
      { ...axis, size: 56, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000] },
    ],
    series: [{}, { fill: () => token("--accent"), stroke: () => token("--accent"), width: 0, points: { show: false }, paths: uPlot.paths.bars({ size: [0.9], align: width > 1 ? 1 : 0 }) }],
    hooks: {
      draw: [drawDay],
      setCursor: [(self) => {
        const place = Math.floor((dayAt(self) - starts[0]) / width);
        hovered.value = self.cursor.left < 0 ? "" : nameOf(place) + ": " + counts[place].toLocaleString("en");
      }],
    },
  }, [starts, counts], box);
  plot.over.addEventListener("click", () => {
    range.value = dayAt(plot);
    range.dispatchEvent(new Event("input"));
    range.dispatchEvent(new Event("change"));
  });
  ["input", "moved"].forEach((name) => range.addEventListener(name, () => plot.redraw(false)));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plot.redraw());
  new ResizeObserver(() => plot.setSize({ width: box.clientWidth, height: 140 })).observe(box);
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

// Add the changes that the stream sends as rows. All values become text, never HTML. A page that nobody sees has no
// stream, because each stream takes one of the few that the server has; it continues after its last change.
function openStream(live) {
  const body = document.getElementById("changes");
  const kinds = ["stored", "superseded", "deleted", "expired", "forgotten", "consolidated", "restored", "rebuilt"];
  let source = null, url = live.dataset.stream;
  const add = (event) => {
    const change = JSON.parse(event.data);
    const row = document.createElement("tr");
    row.className = "new";
    [change.at.slice(0, 19).replace("T", " "), change.kind, change.user_id || "", change.id].forEach((text, place) => {
      const cell = document.createElement("td");
      const hasMemory = place === 3 && change.user_id && ["stored", "superseded", "consolidated"].includes(change.kind);
      const value = place === 2 ? document.createElement("bdi") : hasMemory ? document.createElement("a") : cell;
      if (hasMemory) value.href = live.dataset.agent + "/memories/" + encodeURIComponent(text) + "?" + new URLSearchParams({ user_id: change.user_id });
      value.textContent = marked(text);
      if (value !== cell) cell.append(value);
      if (place === 3) cell.className = "id";
      row.append(cell);
    });
    body.querySelector(".none")?.remove();
    body.append(row);
    while (body.rows.length > 500) body.rows[0].remove();
    const after = new URL(url, location.href);
    after.searchParams.set("cursor", event.lastEventId);
    url = after.href;
  };
  const close = () => source?.close();
  const open = () => {
    close();
    source = new EventSource(url);
    source.onopen = () => { live.textContent = "Live: new changes appear below."; };
    source.onerror = () => {
      const isEnded = source.readyState === EventSource.CLOSED;
      live.textContent = isEnded ? "Not live: the server refuses a further stream, or the session has ended. Reload the page." : "The stream is interrupted, and continues soon.";
    };
    kinds.forEach((kind) => source.addEventListener(kind, add));
  };
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  if (!document.hidden) open();
}

// A button that copies a command. Where the browser gives no clipboard, it selects the command.
function openCopy(code) {
  const button = document.createElement("button"), status = document.createElement("span"), box = document.createElement("div");
  button.type = "button";
  button.textContent = "Copy";
  button.className = "copy";
  status.setAttribute("role", "status");
  status.className = "faint";
  box.className = "copies";
  box.append(button, status);
  code.parentElement.after(box);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      status.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
      status.textContent = "Selected: copy it with the keyboard";
    }
  });
}

const PARTS = { "input[data-for]": openScrubber, "#plot": openPlot, ".sliders": openSliders, "#live[data-stream]": openStream, "pre > code": openCopy };

function openParts() {
  for (const [selector, open] of Object.entries(PARTS)) {
    document.querySelectorAll(selector + ":not([data-opened])").forEach((part) => {
      part.dataset.opened = "yes";
      part.hidden = false;
      open(part);
    });
  }
}

["DOMContentLoaded", "htmx:afterSwap", "htmx:historyRestore"].forEach((name) => document.addEventListener(name, openParts));

// The page requests running work again every few seconds, except while the keyboard's focus is in it: a swap would remove it.
document.addEventListener("htmx:beforeRequest", (event) => {
  if (event.target.id === "state" && event.target.querySelector(":focus-visible")) event.preventDefault();
});
