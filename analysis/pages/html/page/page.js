// Behaviour of report.html: values under the pointer or the arrow keys, and what a column means.
// Every value shown here was written by the report; this only chooses which ones to show.
(() => {
  for (const figure of document.querySelectorAll("figure.chart")) {
    const { labels, places } = JSON.parse(figure.querySelector("script").textContent), probe = figure.querySelector(".probe");
    if (!places.length) {
      probe.remove();
      continue;
    }
    const share = (k) => {
      const [from, to] = figure.zoomed?.() ?? [0, 1];
      return (places[k][0] / 100 - from) / (to - from);
    };
    const say = (k) => {
      const [, title, values] = places[k], off = switchedOff();
      const rows = labels.map(([series, label], n) => [series === null ? null : `s${series}`, label, values[n], series]);
      return [title, rows.filter(([, , value, series]) => value != null && !off.has(series))];
    };
    const { leave } = reading(probe, figure.querySelector(".cross"), { count: () => places.length, share, say });
    figure.addEventListener("zoom", leave);
  }

  for (const button of document.querySelectorAll("[data-tip]")) {
    const show = () => {
      const box = button.getBoundingClientRect();
      tip.show(box.left - 14, box.bottom + 8, chart.tag("span", {}, button.dataset.tip));
    };
    for (const kind of ["pointerenter", "focus"]) button.addEventListener(kind, show);
    for (const kind of ["pointerleave", "blur"]) button.addEventListener(kind, tip.hide);
  }
  for (const box of document.querySelectorAll(".box")) box.addEventListener("scroll", tip.hide, { passive: true });
})();
