// Figures drawn in the page, with the classes of page.css; scales, ticks and numbers as `axes` and `words` have them.
const chart = (() => {
  const WIDTH = 1000; // of the stretched drawing that holds lines and areas

  const fill = (node, attributes, children) => {
    for (const [key, value] of Object.entries(attributes)) if (value != null && value !== false) node.setAttribute(key, value);
    node.append(...children.flat(Infinity).filter((child) => child != null));
    return node;
  };
  const tag = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
  const svg = (name, attributes = {}, ...children) =>
    fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);

  // numbers
  const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0, roundingMode: "halfEven" });
  /** Three digits, or two where that is asked. */
  const significant = (value, digits = 3) => {
    if (value == null || Number.isNaN(value)) return "–";
    if (!Number.isFinite(value)) return "∞";
    const number = Number(value.toPrecision(12)), size = Math.abs(number);
    const wanted = digits - (digits > 2 && size < 0.1);
    const decimals = Number.isInteger(number) ? 0 : Math.max(0, wanted - 1 - Math.floor(Math.log10(size)));
    // a tie goes to the even digit, as Python rounds; toFixed would round it up
    const scaled = size * 10 ** decimals, below = Math.floor(scaled);
    const tie = Number.isInteger(size * 2 ** (decimals + 1)) && scaled - below === 0.5;
    const text = (tie ? (below + (below % 2)) / 10 ** decimals : size).toFixed(decimals);
    return (number < 0 ? "−" : "") + (decimals ? text : Number(text).toLocaleString("en"));
  };
  const unit = (suffix) => (value) => {
    const text = significant(value);
    return text === "–" || text === "∞" ? text : text + suffix;
  };
  const ms = unit("\u00a0ms"), rate = unit("/s"), count = (value) => (value == null ? "–" : whole.format(value));
  const tick = (value) => Number(value.toPrecision(10)).toLocaleString("en", { maximumFractionDigits: 10 });
  const latency = (value) => (value < 1000 ? `${tick(value)}\u00a0ms` : `${tick(value / 1000)}\u00a0s`);

  // scales
  const scale = (low, high, log = false) =>
    Object.assign((value) => (log ? Math.log(Math.max(value, low) / low) / Math.log(high / low) : (value - low) / (high - low)),
      { low, high, log });
  const known = (values) => values.filter((value) => value > 0 && value < Infinity);
  const linear = (values) => scale(0, Math.max(...known(values), 0) * 1.06 || 1);
  const fitting = (values) => {
    const found = known(values), least = Math.min(...found), most = Math.max(...found);
    return found.length && most / least > 12 ? scale(least / 1.25, most * 1.25, true) : linear(found);
  };
  const ticks = ({ low, high, log }, most) => {
    if (log) {
      const decades = Array.from({ length: 16 }, (_, k) => 10 ** (k + Math.floor(Math.log10(low))));
      for (const steps of [[1, 2, 5], [1, 3], [1]]) {
        const found = decades.flatMap((decade) => steps.map((m) => m * decade)).filter((v) => v >= low * 0.999 && v <= high * 1.001);
        if (found.length <= most || steps.length === 1) return found;
      }
    }
    const least = (high - low) / most, power = 10 ** Math.floor(Math.log10(least));
    const step = [1, 2, 5, 10].map((m) => m * power).find((size) => size >= least * 0.999);
    const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
    return Array.from({ length: last - first + 1 }, (_, k) => Number(((first + k) * step).toPrecision(12)));
  };

  /** A plot area; marks are added in the order in which they are painted. */
  const panel = (x, y, height) => {
    const marks = [];
    /** A mark of class s3 is switched with series 3, unless its series is said. */
    const add = (node, said) => {
      const series = said ?? /(?:^| )s(\d+)/.exec([node, node.firstChild].map((one) => one?.getAttribute?.("class") ?? "").join(" "))?.[1];
      if (series != null) node.setAttribute("data-series", series);
      marks.push(node);
    };
    const at = (value) => `${(100 * Math.min(1, Math.max(0, x(value)))).toFixed(2)}%`;
    const top = (value) => (Number.isFinite(value) ? Number((height * (1 - y(value))).toFixed(1)) : 0);
    const path = (d, kind, series) => add(svg("svg", { class: "stretched", width: "100%", height,
      viewBox: `0 0 ${WIDTH} ${height}`, preserveAspectRatio: "none" }, svg("path", { d, class: kind })), series);
    const place = (a, b) => `${(WIDTH * x(a)).toFixed(1)} ${top(b)}`;
    const self = {
      x, y, height,
      grid(values) {
        for (const [value, label] of values) {
          marks.push(svg("line", { x1: 0, x2: "100%", y1: top(value), y2: top(value), class: "grid" }),
            svg("text", { x: -8, y: top(value), dy: "0.32em", "text-anchor": "end" }, label));
        }
      },
      xTicks(values) {
        marks.push(svg("line", { x1: 0, x2: "100%", y1: height, y2: height, class: "axis" }));
        for (const [k, [value, label]] of values.entries()) {
          marks.push(svg("line", { x1: at(value), x2: at(value), y1: height, y2: height + 4, class: "axis" }),
            svg("text", { x: at(value), y: height + 18, "text-anchor": "middle", class: k % 2 && values.length > 5 ? "odd" : null }, label));
        }
      },
      rule(value, kind) { marks.push(svg("line", { x1: 0, x2: "100%", y1: top(value), y2: top(value), class: kind })); },
      upright(value, kind) { marks.push(svg("line", { x1: at(value), x2: at(value), y1: 0, y2: height, class: kind })); },
      shade(from, to, kind) {
        if (x(from) < 1) marks.push(svg("rect", { x: at(from), width: `${(100 * (Math.min(1, x(to)) - x(from))).toFixed(2)}%`, y: 0, height, class: kind }));
      },
      text(value, pixel, label, kind, anchor = "middle") {
        marks.push(svg("text", { x: at(value), y: pixel, "text-anchor": anchor, class: kind }, label));
      },
      /** Through the points; one that is infinite leaves at the top, one that is null breaks the line. */
      line(points, kind, series) {
        const pieces = [[]];
        let before = 0;
        for (const [a, b] of points) {
          if (b == null || (!Number.isFinite(b) && !Number.isFinite(before))) pieces.push([]);
          if (b != null) { pieces[pieces.length - 1].push(place(a, b)); before = b; }
        }
        const d = pieces.filter((piece) => piece.length).map((piece) => `M${(piece.length > 1 ? piece : [...piece, ...piece]).join("L")}`).join("");
        if (d) path(d, kind, series);
      },
      whisker(a, low, high, kind, series) {
        add(svg("line", { x1: at(a), x2: at(a), y1: top(low), y2: top(high), class: kind }), series);
      },
      dot(a, b, kind, { radius = 4, diamond = false, series } = {}) {
        if (Number.isFinite(b) && !diamond) return add(svg("circle", { cx: at(a), cy: top(b), r: radius, class: kind }), series);
        const d = Number.isFinite(b) ? "M0-5.5L5.5 0L0 5.5L-5.5 0Z" : "M-5 0L0-9L5 0Z";
        return add(svg("svg", { x: at(a), y: top(b), class: "mark" }, svg("path", { d, class: kind })), series);
      },
      endLabels(labels) {
        let last = -Infinity;
        for (const [pixel, text, kind] of labels.map(([value, ...rest]) => [top(value), ...rest]).sort((a, b) => a[0] - b[0])) {
          last = Math.max(pixel, last + 15);
          add(svg("text", { x: "100%", dx: 10, y: last, dy: "0.32em", class: `end ${kind}` },
            text.length > 24 ? `…${text.slice(-23)}` : text));
        }
      },
      svg: (label, above, below) =>
        svg("svg", { width: "100%", height: above + height + below, class: "plot", role: "img", "aria-label": label },
          svg("svg", { y: above, class: "mark" }, marks)),
    };
    return self;
  };

  const pressedOff = () =>
    new Set([...document.querySelectorAll('[data-switch][aria-pressed="false"]')].map((button) => Number(button.dataset.switch)));

  /**
   * The drawing with what it shows on hover and to the arrow keys: `places` are { at, title, values: [[series, label, value]] },
   * and a fourth of the values is the colour where it is not the series' own. `off` gives the series that are not shown.
   */
  const plots = (drawing, title, places, { room = 0, off = pressedOff } = {}) => {
    const probe = tag("div", { class: "probe", tabindex: 0, role: "slider", "aria-label": `${title}: values, with the arrow keys`,
      "aria-valuemin": 0, "aria-valuemax": Math.max(0, places.length - 1), "aria-valuenow": 0, "aria-valuetext": "press an arrow key to read values" });
    const cross = tag("div", { class: "cross", hidden: "" }), tip = document.querySelector(".tip");
    let at = -1;
    const leave = () => { cross.hidden = tip.hidden = true; };
    const show = (index) => {
      at = Math.min(places.length - 1, Math.max(0, index));
      const hidden = off(), place = places[at], box = probe.getBoundingClientRect();
      const shown = place.values.filter(([series]) => !hidden.has(series));
      tip.replaceChildren(tag("b", {}, place.title), tag("table", {}, tag("tbody", {}, shown.map(([series, label, value, colour = series]) =>
        tag("tr", {}, tag("td", { class: `s${colour}` }, label), tag("td", {}, value))))));
      tip.hidden = cross.hidden = false;
      cross.style.left = `${100 * place.at}%`;
      const width = tip.getBoundingClientRect().width, right = box.left + box.width * place.at + 14;
      const side = right + width > innerWidth - 8 ? right - 28 - width : right;
      tip.style.left = `${scrollX + Math.max(8, Math.min(side, innerWidth - width - 8))}px`;
      tip.style.top = `${scrollY + box.top + 24}px`;
      probe.setAttribute("aria-valuenow", at);
      probe.setAttribute("aria-valuetext", [place.title, ...shown.map(([, label, value]) => `${label} ${value}`)].join("; "));
    };
    if (places.length) {
      probe.addEventListener("pointermove", (event) => {
        const box = probe.getBoundingClientRect(), x = (event.clientX - box.left) / box.width;
        show(places.reduce((best, place, k) => (Math.abs(place.at - x) < Math.abs(places[best].at - x) ? k : best), 0));
      });
      probe.addEventListener("keydown", (event) => {
        if (event.key === "Escape") leave();
        const to = { ArrowRight: at + 1, ArrowUp: at + 1, ArrowLeft: at - 1, ArrowDown: at - 1, Home: 0, End: places.length }[event.key];
        if (to === undefined) return;
        event.preventDefault();
        show(to);
      });
    }
    probe.addEventListener("pointerleave", leave);
    probe.addEventListener("blur", leave);
    return tag("div", { class: "plots", style: `--room:${room}` }, drawing, probe, cross);
  };

  return { tag, svg, significant, unit, ms, rate, count, tick, latency, scale, linear, fitting, ticks, panel, plots };
})();
