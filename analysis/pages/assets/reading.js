// Values along a chart's x axis, under the pointer or by the arrow keys, and the tip that shows them.
const tip = (() => {
  const box = document.querySelector(".tip");
  const hide = () => { box.hidden = true; };
  /** Beside a place in the window, on the side where there is room. */
  const show = (left, top, ...content) => {
    box.replaceChildren(...content);
    box.hidden = false;
    const { width, height } = box.getBoundingClientRect();
    const beside = left + 14 + width > innerWidth - 8 ? left - 14 - width : left + 14;
    box.style.left = `${scrollX + Math.max(8, Math.min(beside, innerWidth - width - 8))}px`;
    box.style.top = `${scrollY + Math.max(8, Math.min(top, innerHeight - height - 8))}px`;
  };
  return { show, hide };
})();

/**
 * There are `count()` places, place k at `share(k)` of the width of the element `probe`, and `say(k)` is what stands there:
 * [title, rows of [class, label, value]]. Keys begin at place `start()`. `cross` is the line through the place.
 */
const reading = (probe, cross, { count, share, say, start = () => 0 }) => {
  const { tag } = chart;
  let at = -1, height = null;
  const leave = () => {
    cross.hidden = true;
    tip.hide();
  };
  const show = (index, top = null) => {
    if (!count()) return;
    [at, height] = [Math.min(count() - 1, Math.max(0, index)), top];
    const [title, rows] = say(at), box = probe.getBoundingClientRect(), x = share(at);
    cross.style.left = `${100 * x}%`;
    cross.hidden = false;
    tip.show(box.left + box.width * x, top ?? box.top + 24, tag("b", {}, title), tag("table", {}, tag("tbody", {}, rows.map(
      ([kind, label, value]) => tag("tr", {}, tag("td", { class: kind }, label), tag("td", {}, value))))));
    probe.setAttribute("aria-valuenow", at);
    probe.setAttribute("aria-valuetext", `${title}: ${rows.map(([, label, value]) => `${label} ${value}`).join(", ")}`);
  };
  const nearest = (x) => {
    let best = 0;
    for (let k = 1; k < count(); k++) if (Math.abs(share(k) - x) < Math.abs(share(best) - x)) best = k;
    return best;
  };
  probe.addEventListener("pointermove", (event) => {
    const box = probe.getBoundingClientRect();
    show(nearest((event.clientX - box.left) / box.width), event.clientY + 16);
  });
  probe.addEventListener("pointerleave", leave);
  probe.addEventListener("blur", leave);
  probe.addEventListener("focus", () => { if (probe.matches(":focus-visible")) show(at < 0 ? start() : at); });
  probe.addEventListener("keydown", (event) => {
    if (event.key === "Escape") leave();
    const page = Math.max(1, Math.round(count() / 10));
    const to = { ArrowRight: at + 1, ArrowUp: at + 1, ArrowLeft: at - 1, ArrowDown: at - 1,
      PageUp: at + page, PageDown: at - page, Home: 0, End: count() - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    show(to);
  });
  /** What is shown lies at `x` of the width now. */
  const again = (x) => { if (!cross.hidden) show(nearest(x), height); };
  return { leave, again };
};
