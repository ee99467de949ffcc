"use strict";
// Behaviour of report.html: theme, variants on and off, values under the pointer or the arrow keys.
// Every value shown here was written by the report; this only chooses which ones to show.
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const tip = document.querySelector(".tip");
  const make = (name, text, className) => {
    const node = document.createElement(name);
    if (text !== undefined) node.textContent = text;
    if (className) node.className = className;
    return node;
  };
  const hide = () => { tip.hidden = true; };
  const showAt = (left, top, ...content) => {
    tip.replaceChildren(...content);
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    const beside = left + 14 + width > innerWidth - 8 ? left - 14 - width : left + 14;
    tip.style.left = `${scrollX + Math.max(8, Math.min(beside, innerWidth - width - 8))}px`;
    tip.style.top = `${scrollY + Math.max(8, Math.min(top, innerHeight - height - 8))}px`;
  };

  // theme
  const theme = document.querySelector(".theme");
  const dark = () => {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  const name = () => { theme.textContent = dark() ? "Light" : "Dark"; };
  if (theme) { // a chart by itself has none
    theme.addEventListener("click", () => { document.documentElement.dataset.theme = dark() ? "light" : "dark"; name(); });
    name();
  }

  // variants
  const off = new Set();
  for (const button of all("[data-switch]")) {
    button.addEventListener("click", () => {
      const series = button.dataset.switch;
      if (!off.delete(series)) off.add(series);
      for (const mark of all(`[data-series="${series}"]`)) mark.classList.toggle("off", off.has(series));
      for (const same of all(`[data-switch="${series}"]`)) same.setAttribute("aria-pressed", String(!off.has(series)));
    });
  }

  // values
  for (const figure of all("figure.chart")) {
    const { labels, places } = JSON.parse(figure.querySelector("script").textContent);
    const probe = figure.querySelector(".probe"), cross = figure.querySelector(".cross");
    if (!places.length) { probe.remove(); continue; }
    let at = -1;
    const show = (index, top) => {
      at = index;
      const [whole, title, values] = places[at];
      const [from, to] = figure.zoomed?.() ?? [0, 1], x = (whole - 100 * from) / (to - from);
      const shown = labels.map((label, k) => [label, values[k]]).filter(([[s], v]) => v != null && !off.has(String(s)));
      const table = make("table");
      for (const [[series, text], value] of shown) {
        const row = table.insertRow();
        row.append(make("td", text, series === null ? "" : `s${series}`), make("td", value));
      }
      const box = probe.getBoundingClientRect();
      cross.style.left = `${x}%`;
      cross.hidden = false;
      showAt(box.left + (box.width * x) / 100, top ?? box.top + 24, make("b", title), table);
      probe.setAttribute("aria-valuenow", at);
      probe.setAttribute("aria-valuetext", `${title}: ${shown.map(([[, text], value]) => `${text} ${value}`).join(", ")}`);
    };
    const leave = () => { cross.hidden = true; hide(); };
    probe.addEventListener("pointermove", (event) => {
      const box = probe.getBoundingClientRect();
      const [from, to] = figure.zoomed?.() ?? [0, 1];
      const x = 100 * (from + ((to - from) * (event.clientX - box.left)) / box.width);
      const near = places.reduce((best, place, k) => (Math.abs(place[0] - x) < Math.abs(places[best][0] - x) ? k : best), 0);
      show(near, event.clientY + 16);
    });
    figure.addEventListener("zoom", leave);
    probe.addEventListener("pointerleave", leave);
    probe.addEventListener("blur", leave);
    probe.addEventListener("focus", () => { if (probe.matches(":focus-visible")) show(Math.max(at, 0)); });
    probe.addEventListener("keydown", (event) => {
      const last = places.length - 1, page = Math.max(1, Math.round(places.length / 10));
      const to = { ArrowRight: at + 1, ArrowUp: at + 1, ArrowLeft: at - 1, ArrowDown: at - 1,
        PageUp: at + page, PageDown: at - page, Home: 0, End: last }[event.key];
      if (event.key === "Escape") leave();
      if (to === undefined) return;
      event.preventDefault();
      show(Math.min(last, Math.max(0, to)));
    });
  }

  // what a column means
  for (const button of all("[data-tip]")) {
    const show = () => {
      const box = button.getBoundingClientRect();
      showAt(box.left - 14, box.bottom + 8, make("span", button.dataset.tip));
    };
    for (const kind of ["pointerenter", "focus"]) button.addEventListener(kind, show);
    for (const kind of ["pointerleave", "blur"]) button.addEventListener(kind, hide);
  }
  for (const box of all(".box")) box.addEventListener("scroll", hide, { passive: true });
})();
