// Two runs side by side, drawn from what the page embeds; numbers are written as `analysis.words` writes them.
const comparison = (() => {
  const HEIGHT = 320, WIDTH = 1000;
  const LEVEL = ["endpoint", "rate", "concurrency", "offered", "achieved", "p50", "p99", "low", "high", "joules",
    "rounds", "errors", "doubtful"];

  const fill = (node, attributes, children) => {
    for (const [key, value] of Object.entries(attributes)) if (value != null) node.setAttribute(key, value);
    node.append(...children.flat(Infinity).filter((child) => child != null));
    return node;
  };
  const tag = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
  const svg = (name, attributes = {}, ...children) =>
    fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);

  // numbers
  const significant = (value, digits = 3) => {
    if (value == null) return "–";
    if (value === Infinity) return "∞";
    if (value === 0) return "0";
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
  const ms = unit("\u00a0ms"), rate = unit("/s");
  const asked = (level) => (level.concurrency ? `${level.concurrency} under way` : rate(level.rate));
  const span = (level) => (level.low == null || level.high == null ? "" : ` (${significant(level.low)}–${significant(level.high)})`);
  const ratio = (a, b) => (a && b != null && a !== Infinity && b !== Infinity ? `${significant(b / a)}×` : "–");

  const levelsOf = (run) =>
    run.levels.map((row) => {
      const level = Object.fromEntries(LEVEL.map((key, k) => [key, row[k] === "∞" ? Infinity : row[k]]));
      level.endpoint = run.endpoints[level.endpoint];
      level.key = JSON.stringify([level.endpoint, level.rate, level.concurrency]);
      return level;
    });

  // the drawing
  const scale = (low, high, log) =>
    Object.assign((value) => (log ? Math.log(Math.max(value, low) / low) / Math.log(high / low) : (value - low) / (high - low)),
      { low, high, log });
  const fitting = (values) => {
    const found = values.filter((value) => value > 0 && value < Infinity);
    const [least, most] = found.length ? [Math.min(...found), Math.max(...found)] : [0, 1];
    return least && most / least > 12 ? scale(least / 1.25, most * 1.25, true) : scale(0, most * 1.06, false);
  };
  const ticks = ({ low, high, log }, most) => {
    if (log) {
      const decades = Array.from({ length: 14 }, (_, k) => 10 ** (k + Math.floor(Math.log10(low))));
      for (const steps of [[1, 2, 5], [1, 3], [1]]) {
        const found = decades.flatMap((decade) => steps.map((m) => m * decade)).filter((v) => v >= low && v <= high);
        if (found.length <= most || steps.length === 1) return found;
      }
    }
    const power = 10 ** Math.floor(Math.log10((high - low) / most));
    const step = [1, 2, 5, 10].map((m) => m * power).find((size) => size >= ((high - low) / most) * 0.999);
    return Array.from({ length: Math.floor(high / step + 1e-9) + 1 }, (_, k) => Number((k * step).toPrecision(12)));
  };

  const chart = (series, limits, tip) => {
    const levels = series.flatMap(({ levels }) => levels);
    const x = scale(0, Math.max(...levels.map((level) => level.offered)) * 1.04, false);
    const y = fitting([...levels.flatMap(({ p50, p99, low, high }) => [p50, p99, low, high]), ...limits.map((v) => v * 1.1)]);
    const left = (value) => `${(100 * x(value)).toFixed(2)}%`;
    const top = (value) => (value === Infinity ? 0 : Number((HEIGHT * (1 - y(value))).toFixed(1)));
    const marks = [];
    for (const value of ticks(y, 9)) {
      const text = value < 1000 ? `${value.toLocaleString("en")}\u00a0ms` : `${(value / 1000).toLocaleString("en")}\u00a0s`;
      marks.push(svg("line", { x1: 0, x2: "100%", y1: top(value), y2: top(value), class: "grid" }),
        svg("text", { x: -8, y: top(value), dy: "0.32em", "text-anchor": "end" }, text));
    }
    marks.push(svg("line", { x1: 0, x2: "100%", y1: HEIGHT, y2: HEIGHT, class: "axis" }));
    const below = ticks(x, 9);
    for (const [k, value] of below.entries()) {
      marks.push(svg("text", { x: left(value), y: HEIGHT + 18, "text-anchor": "middle",
        class: k % 2 && below.length > 5 ? "odd" : null }, `${value.toLocaleString("en")}/s`));
    }
    for (const limit of limits) marks.push(svg("line", { x1: 0, x2: "100%", y1: top(limit), y2: top(limit), class: "slo" }));
    for (const { number, colour, side, levels: mine } of series) {
      const known = mine.filter((level) => level.p99 != null);
      const own = { "data-series": number };
      for (const level of known.filter(({ low, high }) => low != null && high != null)) {
        marks.push(svg("line", { x1: left(level.offered), x2: left(level.offered), y1: top(level.low), y2: top(level.high),
          class: `whisker s${colour}`, ...own }));
      }
      const places = known.map((level) => `${(WIDTH * x(level.offered)).toFixed(1)} ${top(level.p99)}`);
      if (places.length > 1) {
        marks.push(svg("svg", { width: "100%", height: HEIGHT, viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none",
          class: "stretched", ...own }, svg("path", { d: `M${places.join("L")}`, class: `p99 ${side} s${colour}` })));
      }
      for (const level of known) {
        const shape = level.p99 === Infinity ? "M-5 0L0-9L5 0Z" : side === "A" ? "M-4 0A4 4 0 1 1 4 0A4 4 0 1 1-4 0Z" : "M0-5.5L5.5 0L0 5.5L-5.5 0Z";
        marks.push(svg("svg", { x: left(level.offered), y: top(level.p99), class: "mark", ...own },
          svg("path", { d: shape, class: `dot s${colour}${level.doubtful ? " hollow" : ""}` })));
      }
    }
    const drawing = svg("svg", { width: "100%", height: HEIGHT + 40, class: "plot", role: "img",
      "aria-label": "P99 over offered rate of both runs; the table below has the values" },
      svg("svg", { y: 14, class: "mark" }, marks));
    const probe = tag("div", { class: "probe", tabindex: 0, role: "slider", "aria-label": "Values, with the arrow keys",
      "aria-valuemin": 0, "aria-valuenow": 0, "aria-valuetext": "press an arrow key to read values" });
    const cross = tag("div", { class: "cross", hidden: "" });
    const off = new Set();
    const buttons = series.map(({ number, colour, side, endpoint }) =>
      tag("button", { type: "button", "aria-pressed": "true" },
        tag("i", { class: `swatch ${side} s${colour}` }), `${side} ${endpoint}`));
    for (const [k, button] of buttons.entries()) {
      button.addEventListener("click", () => {
        if (!off.delete(k)) off.add(k);
        button.setAttribute("aria-pressed", String(!off.has(k)));
        for (const mark of drawing.querySelectorAll(`[data-series="${k}"]`)) mark.classList.toggle("off", off.has(k));
      });
    }
    hover(probe, cross, tip, places(series, x), off);
    const notes = [["p99 A", "A"], ["p99 B", "B"], ...(limits.length ? [["slo", "objective"]] : []),
      ...(levels.some((level) => level.doubtful) ? [["hollow", "overloaded or not trusted"]] : []),
      ...(levels.some((level) => level.p99 === Infinity) ? [["arrow", "infinite: lost to failures"]] : [])];
    return tag("figure", { id: "overlaid" },
      tag("figcaption", {}, tag("strong", {}, "P99 against offered rate"), " ",
        tag("span", {}, "Latency from the intended start; bars: 95 % intervals of P99.")),
      tag("div", { class: "legend", role: "group", "aria-label": "Show or hide series" }, buttons,
        notes.map(([kind, text]) => tag("span", { class: "note" }, tag("i", { class: `key ${kind}` }), text))),
      tag("div", { class: "plots" }, drawing, probe, cross));
  };

  /** Per load the values of all series there. */
  const places = (series, x) => {
    const found = new Map();
    for (const { number, colour, side, endpoint, levels } of series) {
      for (const level of levels) {
        const text = asked(level);
        if (!found.has(text)) found.set(text, { at: x(level.offered), text, values: [] });
        const failed = level.errors ? `, ${significant(level.errors)} failed` : "";
        found.get(text).values.push({ number, colour, label: `${side} ${endpoint}`,
          value: `P99 ${ms(level.p99)}${span(level)}, P50 ${ms(level.p50)}${failed}` });
      }
    }
    return [...found.values()].sort((a, b) => a.at - b.at);
  };

  const hover = (probe, cross, tip, found, off) => {
    let at = -1;
    const leave = () => { cross.hidden = tip.hidden = true; };
    const show = (index) => {
      at = Math.min(found.length - 1, Math.max(0, index));
      const place = found[at], box = probe.getBoundingClientRect();
      const shown = place.values.filter(({ number }) => !off.has(number));
      const rows = shown.map(({ colour, label, value }) =>
        tag("tr", {}, tag("td", { class: `s${colour}` }, label), tag("td", {}, value)));
      tip.replaceChildren(tag("b", {}, `${place.text} asked for`), tag("table", {}, tag("tbody", {}, rows)));
      tip.hidden = cross.hidden = false;
      cross.style.left = `${100 * place.at}%`;
      const width = tip.getBoundingClientRect().width, right = box.left + box.width * place.at + 14;
      const side = right + width > innerWidth - 8 ? right - 28 - width : right;
      tip.style.left = `${scrollX + Math.max(8, Math.min(side, innerWidth - width - 8))}px`;
      tip.style.top = `${scrollY + box.top + 24}px`;
      probe.setAttribute("aria-valuenow", at);
      probe.setAttribute("aria-valuetext", [place.text, ...shown.map(({ label, value }) => `${label} ${value}`)].join("; "));
    };
    probe.setAttribute("aria-valuemax", Math.max(0, found.length - 1));
    probe.addEventListener("pointermove", (event) => {
      const box = probe.getBoundingClientRect(), x = (event.clientX - box.left) / box.width;
      show(found.reduce((best, place, k) => (Math.abs(place.at - x) < Math.abs(found[best].at - x) ? k : best), 0));
    });
    probe.addEventListener("pointerleave", leave);
    probe.addEventListener("blur", leave);
    probe.addEventListener("keydown", (event) => {
      if (event.key === "Escape") leave();
      const to = { ArrowRight: at + 1, ArrowUp: at + 1, ArrowLeft: at - 1, ArrowDown: at - 1, Home: 0, End: found.length }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      show(to);
    });
  };

  // the tables
  const boxed = (label, ...children) =>
    tag("div", { class: "box", tabindex: 0, role: "group", "aria-label": label }, tag("table", {}, tag("caption", {}, label), ...children));
  const head = (texts) => tag("thead", {}, tag("tr", {}, texts.map((text) => tag("th", { scope: "col" }, text))));

  const differences = (data, a, b) => {
    const of = (run) => new Map(run.facts.map((number) => data.facts[number]));
    const [left, right] = [of(a), of(b)];
    const names = [...new Set([...left.keys(), ...right.keys()])];
    const unequal = names.filter((name) => left.get(name) !== right.get(name));
    const agree = `${names.length - unequal.length} further facts of versions, hosts, settings and endpoints agree.`;
    if (!unequal.length) return tag("p", {}, `Nothing that is known of what they ran on differs: ${agree}`);
    const rows = unequal.map((name) => tag("tr", {}, tag("th", { scope: "row" }, name),
      [left, right].map((facts) => tag("td", {}, facts.has(name) ? tag("mark", {}, facts.get(name)) : "–"))));
    return tag("div", { class: "differences" }, boxed("Only what differs", head(["fact", "A", "B"]), tag("tbody", {}, rows)), tag("p", {}, agree));
  };

  /** What two intervals say; that they overlap does not make two figures equal. */
  const between = (a, b) => {
    const doubts = [[a, "A"], [b, "B"]].filter(([level]) => level.doubtful).map(([, side]) => side);
    if (doubts.length) return `${doubts.join(" and ")} overloaded or not trusted`;
    if ([a.low, a.high, b.low, b.high].includes(null)) return "no interval: too few samples";
    return a.low > b.high || b.low > a.high ? "intervals apart" : "intervals overlap";
  };

  const figures = (left, right) => {
    const there = new Map(right.map((level) => [level.key, level]));
    const common = left.filter((level) => there.has(level.key));
    const alone = [["A", left, new Set(there.keys())], ["B", right, new Set(left.map((level) => level.key))]]
      .map(([side, levels, other]) => [side, levels.filter((level) => !other.has(level.key))])
      .filter(([, levels]) => levels.length)
      .map(([side, levels]) => tag("p", {}, `Only in ${side}: ${levels.map((level) => `${level.endpoint} at ${asked(level)}`).join(", ")}.`));
    if (!common.length) return [tag("p", {}, "They have no endpoint at the same load in common."), alone];
    const rows = common.map((a) => {
      const b = there.get(a.key), pair = (key) => [a[key], b[key]];
      const cells = [ms(a.p50), ms(b.p50), ratio(...pair("p50")), ms(a.p99) + span(a), ms(b.p99) + span(b), ratio(...pair("p99")),
        between(a, b), rate(a.achieved), rate(b.achieved), significant(a.joules), significant(b.joules), ratio(...pair("joules"))];
      const rounds = a.rounds > 1 || b.rounds > 1 ? `, median of ${a.rounds} and ${b.rounds} rounds` : "";
      return tag("tr", {}, tag("th", { scope: "row" }, `${a.endpoint} at ${asked(a)}${rounds}`),
        cells.map((text) => tag("td", { class: "num" }, text)));
    });
    const heads = ["endpoint", "P50 A", "P50 B", "B ÷ A", "P99 A", "P99 B", "B ÷ A", "in words", "achieved A", "achieved B",
      "J/request A", "J/request B", "B ÷ A"];
    return [tag("div", { class: "figures" },
      boxed("At the loads that both have; P99 with its 95 % interval", head(heads), tag("tbody", {}, rows))), alone];
  };

  const card = (side, run, states) =>
    tag("article", { class: "card" },
      tag("h3", {}, `${side}: `, run.page ? tag("a", { href: `${encodeURIComponent(run.name)}/report.html` }, run.name) : run.name),
      tag("p", {}, tag("span", { class: `state ${run.state}` }, states[run.state]), ` ${run.scenario} ${run.mode} · ${run.when}`),
      tag("p", { class: "said" }, run.said),
      tag("ul", {}, run.reasons.map((reason) => tag("li", {}, reason))));

  const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`);

  /** Everything of the section, for runs of the embedded `data`. */
  const parts = (data, a, b, tip) => {
    const [left, right] = [levelsOf(a), levelsOf(b)];
    const names = [...new Set([...left, ...right].map((level) => level.endpoint))];
    const series = [["A", left], ["B", right]].flatMap(([side, levels], k) =>
      names.map((endpoint, n) => ({ side, endpoint, colour: names.length > 1 ? n : k, levels: levels.filter((level) => level.endpoint === endpoint) })))
      .filter(({ levels }) => levels.length).map((one, number) => ({ ...one, number }));
    const command = `headroom compare ${quoted(`${data.folder}/${a.name}`)} ${quoted(`${data.folder}/${b.name}`)}`;
    const swap = `#compare=${encodeURIComponent(b.name)},${encodeURIComponent(a.name)}`;
    const thinned = [a, b].some((run) => run.endpoints.some((_, n) => run.levels.filter(([of]) => of === n).length >= data.most));
    return [
      tag("p", { class: "back" }, tag("a", { href: "#runs" }, "← all runs"), tag("a", { href: swap }, "swap A and B")),
      tag("h2", { tabindex: -1 }, "Two runs side by side"),
      tag("div", { class: "cards" }, card("A", a, data.states), card("B", b, data.states)),
      tag("h3", {}, "What differs in what they ran on"), differences(data, a, b),
      chart(series, [...new Set([...a.limits, ...b.limits])], tip),
      tag("h3", {}, "Figure by figure"), figures(left, right),
      thinned ? tag("p", {}, `Of more than ${data.most} loads of an endpoint only some are kept here.`) : null,
      tag("p", {}, "An interval knows only its own run: where two are apart, something differs; where they overlap, something still may. The statistical answer, from all requests of both runs:"),
      tag("pre", { tabindex: 0 }, tag("code", {}, command)),
    ].flat(Infinity).filter((part) => part);
  };

  return { parts, significant };
})();
