// Two runs side by side, drawn from what the page embeds.
const comparison = (() => {
  const { tag, significant, ms, rate, load } = chart;
  const HEIGHT = 320;
  const LEVEL = ["endpoint", "rate", "concurrency", "offered", "achieved", "p50", "p99", "low", "high", "joules",
    "ttft", "tpot", "rounds", "errors", "doubtful"];

  const span = (level) => {
    if (level.low == null) return "";
    if (level.low === Infinity) return " (∞)";
    const open = level.high == null || !Number.isFinite(level.high);
    return open ? ` (≥ ${significant(level.low)})` : ` (${significant(level.low)}–${significant(level.high)})`;
  };
  const ratio = (a, b) => (a && b != null && a !== Infinity && b !== Infinity ? `${significant(b / a)}×` : "–");

  const levelsOf = (run) =>
    run.levels.map((row) => {
      const level = Object.fromEntries(LEVEL.map((key, k) => [key, row[k] === "∞" ? Infinity : row[k]]));
      level.endpoint = run.endpoints[level.endpoint];
      level.key = JSON.stringify([level.endpoint, level.rate, level.concurrency]);
      return level;
    });

  // the drawing
  const drawn = (series, limits) => {
    const levels = series.flatMap(({ levels: mine }) => mine);
    const x = chart.scale(0, Math.max(...levels.map((level) => level.offered)) * 1.04);
    const y = chart.fitting([...levels.flatMap(({ p50, p99, low, high }) => [p50, p99, low, high]), ...limits.map((v) => v * 1.1)]);
    const area = panel.area(x, y, HEIGHT);
    area.grid(chart.labels(y, 9, chart.latencyTick));
    area.xTicks(chart.labels(x, 9, chart.rateTick));
    for (const limit of limits) area.rule(limit, "slo");
    for (const { number, colour, side, levels: mine } of series) {
      const known = mine.filter((level) => level.p99 != null);
      for (const { offered, low, high } of known) {
        if (low != null && high != null) area.whisker(offered, low, high, `whisker s${colour}`, number);
      }
      area.line(known.map(({ offered, p99 }) => [offered, p99]), `p99 ${side} s${colour}`, number);
      for (const { offered, p99, doubtful } of known) {
        area.dot(offered, p99, `dot s${colour}${doubtful ? " hollow" : ""}`, { diamond: side === "B", series: number });
      }
    }
    const drawing = area.svg("P99 over offered rate of both runs; the table below has the values", 14, 26);
    const buttons = series.map(({ number, colour, side, endpoint }) =>
      tag("button", { type: "button", "data-switch": number, "aria-pressed": "true" }, tag("i", { class: `swatch ${side} s${colour}` }), `${side} ${endpoint}`));
    const notes = [["p99 A", "A"], ["p99 B", "B"], ...(limits.length ? [["slo", "objective"]] : []),
      ...(levels.some((level) => level.doubtful) ? [["hollow", "overloaded or not trusted"]] : []),
      ...(levels.some((level) => level.p99 === Infinity) ? [["arrow", "infinite: lost to failures"]] : [])];
    const title = "P99 against offered rate";
    const figure = tag("figure", { id: "overlaid" },
      tag("figcaption", {}, tag("strong", {}, title), " ",
        tag("span", {}, "Latency from the intended start; bars: 95 % intervals of P99.")),
      tag("div", { class: "legend", role: "group", "aria-label": "Show or hide series" }, buttons,
        notes.map(([kind, text]) => tag("span", { class: "note" }, tag("i", { class: `key ${kind}` }), text))),
      panel.plots(drawing, title, places(series, x), () => off()));
    const off = switches(figure);
    return figure;
  };

  /** Per load the values of all series there. */
  const places = (series, x) => {
    const found = new Map();
    for (const { number, colour, side, endpoint, levels } of series) {
      for (const level of levels) {
        const text = load(level);
        if (!found.has(text)) found.set(text, { at: x(level.offered), title: `${text} asked for`, values: [] });
        const failed = level.errors ? `, ${significant(level.errors)} failed` : "";
        found.get(text).values.push([number, `${side} ${endpoint}`,
          `P99 ${ms(level.p99)}${span(level)}, P50 ${ms(level.p50)}${failed}`, colour]);
      }
    }
    return [...found.values()].sort((a, b) => a.at - b.at);
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
      .map(([side, levels]) => tag("p", {}, `Only in ${side}: ${levels.map((level) => `${level.endpoint} at ${load(level)}`).join(", ")}.`));
    if (!common.length) return [tag("p", {}, "They have no endpoint at the same load in common."), alone];
    const streams = [...left, ...right].some((level) => level.ttft !== null);
    const rows = common.map((a) => {
      const b = there.get(a.key), pair = (key) => [a[key], b[key]];
      const cells = [ms(a.p50), ms(b.p50), ratio(...pair("p50")), ms(a.p99) + span(a), ms(b.p99) + span(b), ratio(...pair("p99")),
        between(a, b), rate(a.achieved), rate(b.achieved), significant(a.joules), significant(b.joules), ratio(...pair("joules")),
        ...(streams ? ["ttft", "tpot"].flatMap((key) => [ms(a[key]), ms(b[key]), ratio(...pair(key))]) : [])];
      const rounds = a.rounds > 1 || b.rounds > 1 ? `, median of ${a.rounds} and ${b.rounds} rounds` : "";
      return tag("tr", {}, tag("th", { scope: "row" }, `${a.endpoint} at ${load(a)}${rounds}`),
        cells.map((text) => tag("td", { class: "num" }, text)));
    });
    const heads = ["endpoint", "P50 A", "P50 B", "B ÷ A", "P99 A", "P99 B", "B ÷ A", "in words", "achieved A", "achieved B",
      "J/request A", "J/request B", "B ÷ A", ...(streams ? ["TTFT", "TPOT"].flatMap((name) => [`${name} P99 A`, "B", "B ÷ A"]) : [])];
    return [tag("div", { class: "figures" },
      boxed("At the loads that both have; P99 with its 95 % interval", head(heads), tag("tbody", {}, rows))), alone];
  };

  const card = (side, run, states) =>
    tag("article", { class: "card" },
      tag("h3", {}, `${side}: `, run.page ? tag("a", { href: `${encodeURIComponent(run.name)}/report.html` }, run.name) : run.name),
      tag("p", {}, tag("span", { class: `state ${run.state}` }, states[run.state]), ` ${run.scenario} ${run.mode} · ${run.when}`),
      tag("p", { class: "said" }, run.said),
      tag("ul", {}, run.reasons.map((reason) => tag("li", {}, reason))));

  /** Everything of the section, for runs of the embedded `data`. */
  const parts = (data, a, b) => {
    const [left, right] = [levelsOf(a), levelsOf(b)];
    const names = [...new Set([...left, ...right].map((level) => level.endpoint))];
    const series = [["A", left], ["B", right]].flatMap(([side, levels], k) =>
      names.map((endpoint, n) => ({ side, endpoint, colour: names.length > 1 ? n : k, levels: levels.filter((level) => level.endpoint === endpoint) })))
      .filter(({ levels }) => levels.length).map((one, number) => ({ ...one, number }));
    const command = `tailrate compare ${[a, b].map(({ name }) => copying.quoted(`${data.folder}/${name}`)).join(" ")}`;
    const swap = `#compare=${encodeURIComponent(b.name)},${encodeURIComponent(a.name)}`;
    const thinned = [a, b].some((run) => run.endpoints.some((_, n) => run.levels.filter(([of]) => of === n).length >= data.most));
    return [
      tag("p", { class: "back" }, tag("a", { href: "#runs" }, "← all runs"), tag("a", { href: swap }, "swap A and B")),
      tag("h2", { tabindex: -1 }, "Two runs side by side"),
      tag("div", { class: "cards" }, card("A", a, data.states), card("B", b, data.states)),
      tag("h3", {}, "What differs in what they ran on"), differences(data, a, b),
      drawn(series, [...new Set([...a.limits, ...b.limits])]),
      tag("h3", {}, "Figure by figure"), figures(left, right),
      thinned ? tag("p", {}, `Of more than ${data.most} loads of an endpoint only some are kept here.`) : null,
      tag("p", {}, "An interval knows only its own run: where two are apart, something differs; where they overlap, something still may. The statistical answer, from all requests of both runs:"),
      tag("pre", { tabindex: 0 }, tag("code", {}, command)),
    ].flat(Infinity).filter((part) => part);
  };

  return { parts };
})();
