// One axis of time under several panels: a part of it is chosen by dragging, by the buttons or by keys, in all at once.
// Everything that moves lies in `svg.moving`, whose places are in per cent: widening it is all that a zoom does.
(() => {
  const { tag, svg, moment, timeStep } = chart;
  for (const figure of document.querySelectorAll("figure[data-seconds]")) {
    const seconds = Number(figure.dataset.seconds), slice = Number(figure.dataset.slice);
    const plots = figure.querySelector(".plots"), probe = figure.querySelector(".probe");
    const moving = figure.querySelectorAll("svg.moving"), axis = figure.querySelector(".ticks");
    const said = figure.querySelector(".range"), buttons = figure.querySelectorAll("[data-zoom]");
    const brush = plots.appendChild(tag("div", { class: "brush", hidden: "" }));
    const whole = [...axis.childNodes], least = Math.min(1, (4 * slice) / seconds);
    let [from, to] = [0, 1];
    figure.zoomed = () => [from, to];

    const ticks = () => {
      const step = timeStep((to - from) * seconds, plots.clientWidth < 500 ? 5 : 10), made = [];
      for (let t = Math.ceil((from * seconds) / step) * step; t <= to * seconds; t += step) {
        const x = `${(100 * (t / seconds - from)) / (to - from)}%`, y = Number(axis.dataset.y);
        made.push(svg("line", { x1: x, x2: x, y1: y, y2: y + 4, class: "axis" }),
          svg("text", { x, y: y + 18, "text-anchor": "middle" }, moment(t)));
      }
      axis.replaceChildren(...made);
    };
    const zoom = (a, b) => {
      const width = Math.min(1, Math.max(least, b - a));
      from = Math.min(Math.max(0, (a + b - width) / 2), 1 - width);
      to = from + width;
      for (const part of moving) {
        part.setAttribute("width", `${100 / width}%`);
        part.setAttribute("x", `${(-100 * from) / width}%`);
      }
      const all = width > 0.9999;
      if (all) axis.replaceChildren(...whole);
      else ticks();
      said.textContent = all ? "" : `${moment(from * seconds)}–${moment(to * seconds)}`;
      for (const button of buttons) button.disabled = button.dataset.zoom === "in" ? width <= least : all;
      figure.dispatchEvent(new CustomEvent("zoom"));
    };
    const by = (factor) => {
      const middle = (from + to) / 2, half = ((to - from) * factor) / 2;
      zoom(middle - half, middle + half);
    };
    const move = (share) => zoom(from + share * (to - from), to + share * (to - from));
    const acts = { in: () => by(0.5), out: () => by(2), all: () => zoom(0, 1) };
    for (const button of buttons) button.addEventListener("click", acts[button.dataset.zoom]);
    probe.addEventListener("keydown", (event) => {
      const act = { "+": acts.in, "=": acts.in, "-": acts.out, 0: acts.all, "<": () => move(-0.5), ">": () => move(0.5) }[event.key];
      if (act) { event.preventDefault(); act(); }
    });
    let start = null;
    const share = (event) => {
      const box = probe.getBoundingClientRect();
      return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    };
    probe.addEventListener("pointerdown", (event) => {
      if (event.button || event.pointerType === "touch") return;
      start = share(event);
      probe.setPointerCapture(event.pointerId);
    });
    probe.addEventListener("pointermove", (event) => {
      if (start === null) return;
      const ends = [start, share(event)].sort((a, b) => a - b);
      brush.hidden = ends[1] - ends[0] < 0.005;
      brush.style.left = `${100 * ends[0]}%`;
      brush.style.width = `${100 * (ends[1] - ends[0])}%`;
    });
    const finish = (event) => {
      if (start === null) return;
      const ends = [start, share(event)].sort((a, b) => a - b).map((x) => from + x * (to - from));
      const chosen = !brush.hidden && event.type === "pointerup";
      start = null;
      brush.hidden = true;
      if (chosen) zoom(...ends);
    };
    for (const kind of ["pointerup", "pointercancel"]) probe.addEventListener(kind, finish);
    probe.addEventListener("dblclick", acts.all);
    zoom(0, 1);
  }
})();
