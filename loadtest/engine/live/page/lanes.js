// The chart of the live page: one time axis, one lane for each quantity, and the values of a second.
const lanes = (() => {
  const { tag, svg, significant, ms, rate, load, moment } = chart;
  const TOP = 30, GAP = 32;
  const plot = document.querySelector(".plot"), probe = document.querySelector(".probe"), legend = document.getElementById("legend");
  /** By column: title, value in words, unit, highest value. */
  const QUANTITIES = {
    util_pct: ["utilisation, %", (value) => `${significant(value)} %`, 1, 100],
    mem_bytes: ["memory, GiB", (value) => `${significant(value / 2 ** 30)} GiB`, 2 ** 30],
    power_w: ["power, W", (value) => `${significant(value)} W`, 1],
    temp_c: ["temperature, °C", (value) => `${significant(value)} °C`, 1],
    sm_mhz: ["clock, MHz", (value) => `${significant(value)} MHz`, 1],
  };
  let points = [], events = [], state = null, names = null, column = {};
  let at = null; // the moment that is looked at

  const colour = (endpoint) => `s${Math.max(0, state.endpoints.findIndex((row) => row.endpoint === endpoint)) % 6}`;
  const middle = (point) => point.t - point.s / 2;
  const end = () => Math.max(10, points[points.length - 1].t);

  // ---- the lines

  const rates = (place, value) => state.endpoints.map((row, k) => ({
    series: row.endpoint, className: `s${k % 6}`, value: (point) => (point.e[k] ? value(point.e[k], point.s) : undefined), place }));
  // a second that a step covers in part has no rate of its own that could be compared
  const partly = (columns, span) => span === 1 && columns[column.step_s] > 0 && columns[column.step_s] < 0.99;
  const per = (name) => (columns, span) => (
    columns[column[name]] === null || partly(columns, span) ? undefined : columns[column[name]] / (columns[column.step_s] || span));
  const counted = (columns) => columns[column.ok] + columns[column.failed] + columns[column.dropped];
  /** Infinite where it was lost to failures. */
  const latency = (name) => (columns) => columns[column[name]] ?? (counted(columns) ? Infinity : undefined);
  const summed = (...wanted) => (point) => {
    const all = Object.values(point.e);
    return all.length ? all.reduce((sum, columns) => sum + wanted.reduce((part, name) => part + columns[column[name]], 0), 0) / point.s : undefined;
  };

  const wanted = () => {
    const found = [
      { title: "requests per second", height: 130, lines: [...rates("dots", per("offered")), ...rates("full", per("ok"))] },
      { title: "latency", height: 170, log: true, lines: [...rates("dots", latency("p50_ms")), ...rates("full", latency("p99_ms"))] },
      { title: "unanswered requests", height: 80, lines: rates("full", (columns) => columns[column.in_flight] ?? undefined) },
    ];
    const streamed = (columns) => columns[column.tokens] !== null;
    if (points.some((point) => Object.values(point.e).some(streamed))) {
      found.splice(2, 0,
        { title: "first token, P99", height: 110, log: true, limits: "ttft_slo_ms", lines: rates("full", (columns) => (streamed(columns) ? latency("ttft_p99_ms")(columns) : undefined)) },
        { title: "tokens per second", height: 80, lines: rates("full", (columns, span) => (streamed(columns) ? per("tokens")(columns, span) : undefined)) });
    }
    const wrong = summed("failed", "dropped"), late = summed("late");
    if (points.some((point) => wrong(point) || late(point))) {
      found.push({ title: "failed or dropped /s, dashed: late", height: 60, lines: [
        { series: "late", className: "", place: "late", value: late }, { series: "failed or dropped", className: "", place: "bad", value: wrong }] });
    }
    names.devices.forEach((name, k) => {
      const [title, , unit, top] = QUANTITIES[name];
      if (state.devices.every((device) => device[name] === null)) return;
      found.push({ title: `device ${title}`, height: 60, top, lines: state.devices.map((device, which) => ({
        series: device.name, className: "", place: "device", value: (point) => (point.d[which]?.[k] ?? undefined) && point.d[which][k] / unit })) });
    });
    return found;
  };

  // ---- drawing

  /** Height in pixels of a value, and what is written at the side. */
  const linear = (lane, values) => {
    const scale = chart.scale(0, lane.top || Math.max(values.reduce((a, b) => Math.max(a, b), 0) * 1.05, 1));
    return { y: (value) => lane.height * (1 - scale(value)), labels: chart.labels(scale, lane.height > 100 ? 4 : 2.5) };
  };
  const logarithmic = (lane, values) => {
    const finite = values.filter((value) => Number.isFinite(value) && value > 0);
    const [least, most] = finite.length ? [Math.min, Math.max].map((pick) => finite.reduce((a, b) => pick(a, b))) : [1, 10];
    const scale = chart.scale(least * 0.8, Math.max(least * 3.2, most * 1.25), true);
    return { y: (value) => Math.max(0, lane.height - (lane.height - 14) * scale(value)), labels: chart.labels(scale, 6, chart.latencyTick) };
  };
  const level = (kind, y, width) => svg("line", { class: kind, x1: 0, x2: width, y1: y, y2: y });
  const upright = (kind, x, top, bottom) => svg("line", { class: kind, x1: x, x2: x, y1: top, y2: bottom });
  const aside = (y, text) => svg("text", { x: -8, y: y + 4, "text-anchor": "end" }, text);
  const path = (line, values, x, y) => {
    let d = "", down = false;
    values.forEach((value, n) => {
      const known = value !== undefined;
      if (known) d += `${down ? "L" : "M"}${x(middle(points[n])).toFixed(1)} ${y(value).toFixed(1)}${down ? "" : "h0"}`;
      down = known;
    });
    return d ? svg("path", { class: `${line.place} ${line.className}`, d, "data-series": line.series }) : null;
  };
  const lane = (one, top, width, x) => {
    const values = one.lines.map((line) => points.map(line.value)), flat = values.flat().filter((value) => value !== undefined);
    const { y, labels } = (one.log ? logarithmic : linear)(one, flat), marks = [];
    for (const [tick, label] of labels) marks.push(level(tick ? "grid" : "axis", y(tick), width), aside(y(tick), label));
    if (one.log && flat.includes(Infinity)) marks.push(aside(0, "∞"));
    for (const limit of (one.log && state.facts[one.limits || "slo_ms"]) || []) {
      if (y(limit) <= 0 || y(limit) >= one.height) continue;
      marks.push(level("slo", y(limit), width),
        svg("text", { class: "slo", x: width, y: y(limit) - 4, "text-anchor": "end" }, `objective ${ms(limit)}`));
    }
    return [svg("text", { class: "unit", x: 0, y: top - 8 }, one.title),
      svg("g", { transform: `translate(0 ${top})` }, marks, one.lines.map((line, k) => path(line, values[k], x, y)))];
  };
  /** A strip for each endpoint, and the rates where there is room for them. */
  const steps = (x) => {
    const overs = new Map(events.filter((event) => event.event === "step_end").map((event) => [event.step, event.t])), marks = [];
    let labelled = -Infinity;
    for (const step of events.filter((event) => event.event === "step_start").slice(-300)) {
      const row = Math.max(0, state.endpoints.findIndex((known) => known.endpoint === step.endpoint)), text = load(step);
      const from = x(Math.max(0, step.t)), until = x(Math.min(end(), overs.get(step.step) ?? end(), step.t + step.seconds));
      if (until <= from) continue;
      marks.push(svg("rect", { class: `step s${row % 6}`, x: from, y: TOP - 8 + 7 * Math.min(5, row), width: Math.max(1, until - from - 1), height: 5 }));
      if (until - from > text.length * 7 + 8 && from >= labelled) {
        marks.push(svg("text", { x: (from + until) / 2, y: TOP - 14, "text-anchor": "middle" }, text));
        labelled = until;
      }
    }
    return marks;
  };
  const draw = () => {
    const width = plot.clientWidth || 600, x = (t) => (width * t) / end(), marks = steps(x);
    let top = TOP + 7 * Math.min(6, state.endpoints.length);
    for (const one of wanted()) {
      top += GAP;
      marks.push(lane(one, top, width, x));
      top += one.height;
    }
    const ground = events.filter((one) => one.warning).slice(-100).map((event) => upright("event", x(event.t), TOP, top));
    for (let t = 0, every = chart.timeStep(end(), width / 64); t <= end(); t += every) {
      ground.push(upright("boundary", x(t), TOP + 20, top));
      const anchor = t === 0 ? "start" : x(t) > width - 20 ? "end" : "middle";
      marks.push(svg("text", { x: x(t), y: top + 18, "text-anchor": anchor }, moment(t)));
    }
    plot.replaceChildren(svg("g", {}, ground), ...marks.flat(Infinity));
    plot.setAttribute("height", top + 24);
    plot.setAttribute("viewBox", `0 0 ${width} ${top + 24}`);
    probe.setAttribute("aria-valuemax", points.length - 1);
    legend.replaceChildren(
      ...state.endpoints.map((row, k) => tag("span", {}, tag("i", { class: `swatch s${k % 6}` }), row.endpoint)),
      ...[["", "achieved and P99"], ["dotted", "offered and P50"]].map(([kind, text]) =>
        tag("span", { class: "quiet" }, tag("i", { class: `key ${kind}` }), text)));
    if (at !== null) values.again(at / end());
  };

  // ---- values under the pointer or the arrow keys

  const say = (k) => {
    const point = points[k], rows = [];
    at = middle(point);
    state.endpoints.forEach((row, n) => {
      const columns = point.e[n];
      if (!columns) return;
      rows.push([`s${n % 6}`, row.endpoint, ""]);
      for (const [label, value] of [["offered", per("offered")], ["achieved", per("ok")]]) rows.push([null, label, rate(value(columns, point.s))]);
      for (const [label, name] of [["P50", "p50_ms"], ["P99", "p99_ms"]]) rows.push([null, label, ms(latency(name)(columns))]);
      if (columns[column.tokens] !== null) rows.push([null, "TTFT P99", ms(latency("ttft_p99_ms")(columns))], [null, "tokens", rate(per("tokens")(columns, point.s))]);
      rows.push([null, "unanswered", significant(columns[column.in_flight])]);
      for (const name of ["failed", "dropped", "late"]) if (columns[column[name]]) rows.push([null, name, significant(columns[column[name]])]);
    });
    state.devices.forEach((device, n) => {
      if (!point.d[n]) return;
      const known = names.devices.map((name, which) => [name, point.d[n][which]]).filter(([, value]) => value !== null);
      rows.push([null, device.name, known.map(([name, value]) => QUANTITIES[name][1](value)).join(", ")]);
    });
    return [`${moment(point.t - point.s)} to ${moment(point.t)}`, rows];
  };
  const values = reading(probe, document.querySelector(".cross"), {
    count: () => points.length, share: (k) => middle(points[k]) / end(), say, start: () => points.length - 1 });
  new ResizeObserver(() => { if (points.length) draw(); }).observe(plot.parentElement);

  /** `points` of another run may be none. */
  const show = (known) => {
    ({ points, events, state, names, column } = known);
    if (points.length) draw();
    else values.leave();
  };
  return { show, colour, QUANTITIES };
})();
