// A plot area drawn in the page, with the marks and classes of `svg.py` and `figure.py`.
const panel = (() => {
  const { tag, svg } = chart;
  const WIDTH = 1000; // of the stretched drawing that holds lines and areas
  const EDGE = 0.02; // of the width: text so near to an end would be cut in its middle

  /** The area; marks are added in the order in which they are painted. */
  const area = (x, y, height) => {
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
      text(value, pixel, label, kind) {
        const anchor = x(value) < EDGE ? "start" : x(value) > 1 - EDGE ? "end" : "middle";
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

  /**
   * The drawing with what it shows on hover and to the arrow keys: `places` are { at, title, values: [[series, label, value]] },
   * and a fourth of the values is the colour where it is not the series' own. `off` gives the series that are not shown.
   */
  const plots = (drawing, title, places, off, room = 0) => {
    const probe = tag("div", { class: "probe", tabindex: 0, role: "slider", "aria-label": `${title}: values, with the arrow keys`,
      "aria-valuemin": 0, "aria-valuemax": Math.max(0, places.length - 1), "aria-valuenow": 0, "aria-valuetext": "press an arrow key to read values" });
    const cross = tag("div", { class: "cross", hidden: "" });
    const say = (k) => [places[k].title, places[k].values.filter(([series]) => !off().has(series)).map(
      ([series, label, value, colour = series]) => [`s${colour}`, label, value])];
    reading(probe, cross, { count: () => places.length, share: (k) => places[k].at, say });
    return tag("div", { class: "plots", style: `--room:${room}` }, drawing, probe, cross);
  };

  return { area, plots };
})();
