"use strict";
// Behaviour of the live page: asks once a second what has changed, and draws what is known.
// Every text that came from elsewhere goes into the page as text, never as markup.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const find = (id) => document.getElementById(id);
  const show = (node, on) => { node.hidden = !on; };
  const write = (node, text) => { if (node.textContent !== text) node.textContent = text; };
  const make = (name, text, className) => {
    const node = document.createElement(name);
    if (text !== undefined) node.textContent = text;
    if (className) node.className = className;
    return node;
  };
  const draw = (parent, name, attributes, text) => {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    parent.append(node);
    return node;
  };

  // ---- words

  const number = (value, digits = 3) => {
    if (value === null || value === undefined) return "–";
    if (!value) return "0";
    const decimals = Number.isInteger(value) ? 0 : Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(value))));
    return value.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
  };
  const ms = (value, n) => (value !== null ? `${number(value)} ms` : n ? "∞" : "–");
  const rate = (value) => (value === null ? "–" : `${number(value)}/s`);
  const asked = (step) => (step.concurrency ? `${step.concurrency} under way` : rate(step.rate));
  const duration = (seconds) => {
    const whole = Math.round(seconds), hours = Math.floor(whole / 3600);
    if (whole < 120) return `${whole} s`;
    return hours ? `${hours} h ${Math.floor(whole / 60) % 60} min` : `${Math.floor(whole / 60)} min ${whole % 60} s`;
  };
  const clock = (seconds) => {
    const whole = Math.max(0, Math.round(seconds)), two = (part) => String(part).padStart(2, "0");
    const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
    return h ? `${h}:${two(m)}:${two(s)}` : `${m}:${two(s)}`;
  };
  const STATUS = { waiting: "waiting for a start", running: "● running", complete: "✓ complete", failed: "✕ failed" };
  const QUANTITIES = {
    util_pct: ["utilisation, %", (value) => `${number(value)} %`, 1, 100],
    mem_bytes: ["memory, GiB", (value) => `${number(value / 2 ** 30)} GiB`, 2 ** 30],
    power_w: ["power, W", (value) => `${number(value)} W`, 1],
    temp_c: ["temperature, °C", (value) => `${number(value)} °C`, 1],
    sm_mhz: ["clock, MHz", (value) => `${number(value)} MHz`, 1],
  };

  // ---- what is known

  const MORE = 3600; // so many points later the server has taken old ones together: fetch all anew
  let cursor = "", points = [], events = [], state = null, names = null, most = MORE, spoken = "", column = {};

  const take = (found) => {
    if (found.whole) {
      points = [];
      events = [];
      most = found.points.length + MORE;
    }
    ({ cursor, state, names } = found);
    column = Object.fromEntries(names.rates.map((name, k) => [name, k]));
    points.push(...found.points);
    events.push(...found.events);
    if (points.length > most) cursor = "";
    render(found.report);
  };

  // ---- sentences and tables

  const headline = () => {
    const { status, facts, steps, of, doing, soak, elapsed_s: elapsed } = state;
    const rates = steps.map((step) => `${step.endpoint} at ${asked(step)}`).join(", ");
    const where = soak && steps.length ? `chapter ${soak.chapter} of ${soak.of}, ${rates}` : steps.map((step) => `step ${step.index + 1}${of ? ` of ${of}` : ""}, ${step.endpoint} at ${asked(step)}`).join("; ");
    if (status === "waiting") return ["No test has been started.", "Start one on Locust's page; this page then shows it."];
    if (status === "failed") return [doing || "The run failed.", ""];
    if (status === "complete") return [`Complete after ${duration(elapsed)}.`, ""];
    if (status === "aborted") return [facts.run ? `Stopped after ${duration(elapsed)}.` : "Stopped before anything was sent.", ""];
    const left = steps.filter((step) => step.left_s !== null).map((step) => step.left_s);
    const parts = left.length ? [`${duration(Math.max(...left))} left in this ${soak ? "chapter" : "step"}`] : [];
    if (state.left_s !== null) parts.push(`${duration(state.left_s)} left${soak ? ` of ${duration(soak.total_s)}` : " in all"}`);
    if (soak && soak.used_bytes !== null) parts.push(`${number(soak.used_bytes / 1e6)} MB on disk, ${number(soak.free_bytes / 1e9)} GB free`);
    if (where && doing) parts.unshift(doing);
    const first = where || doing || (status === "starting" ? "the load processes get ready" : "between two steps");
    return [`${first[0].toUpperCase()}${first.slice(1)}`, parts.join(", ")];
  };

  const fill = (section, head, rows) => {
    show(section, rows.length > 0);
    const [top] = section.getElementsByTagName("thead"), [body] = section.getElementsByTagName("tbody");
    const put = (parent, cells, tag) => {
      while (parent.cells.length > cells.length) parent.lastChild.remove();
      cells.forEach((cell, k) => {
        const [text, className = ""] = [].concat(cell);
        const node = parent.cells[k] || parent.appendChild(document.createElement(tag && k ? "td" : "th"));
        node.scope = !tag ? "col" : k ? "" : "row";
        write(node, text);
        if (node.className !== className) node.className = className;
      });
    };
    put(top.rows[0] || top.insertRow(), head);
    while (body.rows.length > rows.length) body.lastChild.remove();
    rows.forEach(([className, cells], k) => {
      const row = body.rows[k] || body.insertRow();
      if (row.className !== className) row.className = className;
      put(row, cells, "body");
    });
  };
  const colour = (endpoint) => `s${Math.max(0, state.endpoints.findIndex((row) => row.endpoint === endpoint)) % 6}`;
  const some = (count, text) => [text ?? number(count), count ? "bad" : ""];

  const tables = () => {
    const variants = state.endpoints.map((row) => {
      const name = [row.endpoint, colour(row.endpoint)];
      if (row.step === null) return ["past", [name, "not yet", ...Array(10).fill("–")]];
      const failures = Object.entries(row.failed), failed = failures.reduce((sum, [, count]) => sum + count, 0);
      const why = failures.map(([status, count]) => `${status}: ${number(count)}`).join(", ");
      return [row.running ? "" : "past", [
        name, `${row.step + 1}${row.running ? "" : ", over"}`, asked(row), rate(row.offered_rps), rate(row.achieved_rps), ms(row.p50_ms, row.n),
        ms(row.p99_ms, row.n), row.running ? number(row.in_flight) : "–", ms(row.late_p99_ms, 0), some(row.late), some(row.dropped),
        some(failed, failed ? `${number(failed)} (${why})` : "0")]];
    });
    const figures = ["achieved", "P50", "P99"];
    fill(find("variants"), ["variant", "step", "asked", "offered", ...figures, "unanswered", "late, P99", "late", "dropped", "failed"], variants);

    const kept = names.devices.filter((name) => state.devices.some((device) => device[name] !== null));
    const devices = state.devices.map((device) => [device.stale ? "stale" : "", [
      device.name, ...kept.map((name) => (device[name] === null ? "–" : QUANTITIES[name][1](device[name]))),
    ]]);
    fill(find("devices"), ["device", ...kept.map((name) => QUANTITIES[name][0].split(",")[0])], devices);

    const over = events.filter((event) => event.event === "step_end").slice(-200).reverse().map((event) => ["", [
      [event.endpoint, colour(event.endpoint)], `${event.step + 1}`, asked(event), rate(event.achieved_rps), ms(event.p50_ms, 1),
      ms(event.p99_ms, 1), ms(event.late_p99_ms, 0), some(event.errors)]]);
    fill(find("steps"), ["variant", "step", "asked", ...figures, "late, P99", "failed"], over);
  };

  const list = (node, items) => node.replaceChildren(...items.map((parts) => {
    const item = make("li");
    item.append(...parts);
    return item;
  }));

  const render = (report) => {
    const { status, facts, elapsed_s: elapsed, left_s: left } = state;
    const [first, rest] = headline();
    write(find("name"), facts.name ? `Load test of ${facts.name} (${facts.mode}) at ${facts.url}` : "Load test");
    write(find("headline"), first);
    write(find("subline"), rest);
    write(find("status"), STATUS[status] || status);
    find("status").className = `verdict ${status}`;
    document.title = `${status === "running" && state.steps.length ? first : status} · tailrate`;
    const share = left === null ? null : Math.round((100 * elapsed) / Math.max(1, elapsed + left));
    show(find("progress"), share !== null);
    find("progress").setAttribute("aria-valuenow", share ?? 0);
    find("progress").firstChild.style.width = `${share ?? 0}%`;

    show(find("report"), report.state === "ready");
    show(find("make"), report.state === "absent" || report.state === "failed");
    show(find("making"), ["absent", "making", "failed"].includes(report.state));
    if (report.state === "making") write(find("making"), `Making the report … ${report.said}`);
    else if (report.command) {
      const why = report.state === "failed" ? `There is no report: ${report.said} ` : "";
      find("making").replaceChildren(`${why}Or in a shell: `, make("code", report.command));
    }

    const warned = events.filter((event) => event.warning).slice(-50).reverse();
    show(find("doubts"), warned.length + state.doubts.length > 0);
    list(find("now-doubts"), state.doubts.map((doubt) => [doubt]));
    list(find("past-doubts"), warned.map((event) => [make("b", clock(event.t)), event.warning]));
    // read out when something else begins, not each second
    const now = [`${STATUS[status] || status}: ${state.steps.length || status !== "running" ? first : ""}`, warned.length ? warned[0].warning : ""].join(" ");
    if (now !== spoken) write(find("spoken"), (spoken = now));

    tables();
    show(find("time"), points.length > 0);
    if (points.length) chart();
  };

  // ---- the chart: one time axis, one lane for each quantity

  const svg = document.querySelector(".plot"), probe = document.querySelector(".probe");
  const cross = document.querySelector(".cross"), tip = document.querySelector(".tip");
  const TOP = 30, GAP = 32;
  let at = null; // the moment that is looked at

  const rates = (place, value) => state.endpoints.map((row, k) => ({
    series: row.endpoint, className: `s${k % 6}`, value: (point) => (point.e[k] ? value(point.e[k], point.s) : undefined), place }));
  // a second that a step covers in part has no rate of its own that could be compared
  const partly = (columns, span) => span === 1 && columns[column.step_s] > 0 && columns[column.step_s] < 0.99;
  const per = (name) => (columns, span) => (
    columns[column[name]] === null || partly(columns, span) ? undefined : columns[column[name]] / (columns[column.step_s] || span));
  const counted = (columns) => columns[column.ok] + columns[column.failed] + columns[column.dropped];
  const latency = (name) => (columns) => columns[column[name]] ?? (counted(columns) ? Infinity : undefined);
  const summed = (...wanted) => (point) => {
    const all = Object.values(point.e);
    return all.length ? all.reduce((sum, columns) => sum + wanted.reduce((part, name) => part + columns[column[name]], 0), 0) / point.s : undefined;
  };

  const lanes = () => {
    const found = [
      { title: "requests per second", height: 130, lines: [...rates("dots", per("offered")), ...rates("full", per("ok"))] },
      { title: "latency", height: 170, log: true, lines: [...rates("dots", latency("p50_ms")), ...rates("full", latency("p99_ms"))] },
      { title: "unanswered requests", height: 80, lines: rates("full", (columns) => columns[column.in_flight] ?? undefined) },
    ];
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

  const round = (least) => { // 1, 2 or 5 times a power of ten, at least so much
    const power = 10 ** Math.floor(Math.log10(least));
    return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least * 0.999);
  };
  const linear = (lane, highest) => {
    const top = lane.top || Math.max(highest * 1.05, 1), step = round(top / (lane.height > 100 ? 4 : 2.5));
    const ticks = Array.from({ length: Math.floor(top / step + 1e-9) + 1 }, (_, k) => k * step);
    return { y: (value) => lane.height * (1 - value / top), ticks, label: (tick) => tick.toLocaleString("en-US") };
  };
  const logarithmic = (lane, values) => {
    const finite = values.filter((value) => Number.isFinite(value) && value > 0);
    const low = Math.min(...(finite.length ? [finite.reduce((a, b) => Math.min(a, b))] : [1])) * 0.8;
    const high = Math.max(low * 4, (finite.length ? finite.reduce((a, b) => Math.max(a, b)) : 10) * 1.25);
    const decades = Math.log10(high / low), factors = decades < 1.6 ? [1, 2, 5] : decades < 3.2 ? [1, 3] : [1];
    const ticks = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
      ticks.push(...factors.map((factor) => factor * 10 ** power).filter((tick) => tick >= low && tick <= high));
    }
    const y = (value) => Math.max(0, lane.height - (lane.height - 14) * (Math.log(Math.max(value, low) / low) / Math.log(high / low)));
    return { y, ticks, label: (tick) => (tick >= 1000 ? `${number(tick / 1000)} s` : `${number(tick)} ms`) };
  };

  const middle = (point) => point.t - point.s / 2;
  const chart = () => {
    const width = svg.clientWidth || 600, end = Math.max(10, points[points.length - 1].t), x = (t) => (width * t) / end;
    const room = (text) => text.length * 7 + 8;
    svg.replaceChildren();
    const ground = draw(svg, "g", {});
    let top = TOP + 7 * Math.min(6, state.endpoints.length);

    const overs = new Map(events.filter((event) => event.event === "step_end").map((event) => [event.step, event.t]));
    const begun = events.filter((event) => event.event === "step_start").slice(-300);
    let labelled = -Infinity;
    for (const step of begun) {
      const row = Math.max(0, state.endpoints.findIndex((known) => known.endpoint === step.endpoint));
      const until = Math.min(end, overs.get(step.step) ?? end, step.t + step.seconds), from = Math.max(0, step.t);
      if (until <= from) continue;
      draw(svg, "rect", { class: `step s${row % 6}`, x: x(from), y: TOP - 8 + 7 * Math.min(5, row), width: Math.max(1, x(until) - x(from) - 1), height: 5 });
      const text = asked(step);
      if (x(until) - x(from) > room(text) && x(from) >= labelled) {
        draw(svg, "text", { x: (x(from) + x(until)) / 2, y: TOP - 14, "text-anchor": "middle" }, text);
        labelled = x(until);
      }
    }

    for (const lane of lanes()) {
      top += GAP;
      draw(svg, "text", { class: "unit", x: 0, y: top - 8 }, lane.title);
      const group = draw(svg, "g", { transform: `translate(0 ${top})` });
      const values = lane.lines.map((line) => points.map(line.value));
      const flat = values.flat().filter((value) => value !== undefined);
      const scale = lane.log ? logarithmic(lane, flat) : linear(lane, flat.reduce((a, b) => Math.max(a, b), 0));
      for (const tick of scale.ticks) {
        const y = scale.y(tick);
        draw(group, "line", { class: tick ? "grid" : "axis", x1: 0, x2: width, y1: y, y2: y });
        draw(group, "text", { x: -8, y: y + 4, "text-anchor": "end" }, scale.label(tick));
      }
      if (lane.log) {
        if (flat.includes(Infinity)) draw(group, "text", { x: -8, y: 4, "text-anchor": "end" }, "∞");
        for (const limit of (state.facts.slo_ms || [])) {
          const y = scale.y(limit);
          if (y <= 0 || y >= lane.height) continue;
          draw(group, "line", { class: "slo", x1: 0, x2: width, y1: y, y2: y });
          draw(group, "text", { class: "slo", x: width, y: y - 4, "text-anchor": "end" }, `objective ${number(limit)} ms`);
        }
      }
      lane.lines.forEach((line, k) => {
        let path = "", down = false;
        values[k].forEach((value, n) => {
          const known = value !== undefined;
          if (known) path += `${down ? "L" : "M"}${x(middle(points[n])).toFixed(1)} ${scale.y(value).toFixed(1)}${down ? "" : "h0"}`;
          down = known;
        });
        if (path) draw(group, "path", { class: `${line.place} ${line.className}`, d: path, "data-series": line.series });
      });
      top += lane.height;
    }
    for (const event of events.filter((one) => one.warning).slice(-100)) {
      draw(ground, "line", { class: "event", x1: x(event.t), x2: x(event.t), y1: TOP, y2: top });
    }
    const every = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200].find((step) => x(step) >= 64) || 86400;
    for (let t = 0; t <= end; t += every) {
      draw(ground, "line", { class: "boundary", x1: x(t), x2: x(t), y1: TOP + 20, y2: top });
      const anchor = t === 0 ? "start" : x(t) > width - 20 ? "end" : "middle";
      draw(svg, "text", { x: x(t), y: top + 18, "text-anchor": anchor }, clock(t));
    }
    svg.setAttribute("height", top + 24);
    svg.setAttribute("viewBox", `0 0 ${width} ${top + 24}`);
    probe.setAttribute("aria-valuemax", points.length - 1);

    const kinds = [["", "achieved and P99"], ["dotted", "offered and P50"]];
    find("legend").replaceChildren(
      ...state.endpoints.map((row, k) => { const key = make("span"); key.append(make("i", "", `swatch s${k % 6}`), row.endpoint); return key; }),
      ...kinds.map(([kind, text]) => { const key = make("span", undefined, "quiet"); key.append(make("i", "", `key ${kind}`), text); return key; }));
    if (at !== null) look(at);
  };

  // ---- values under the pointer or the arrow keys

  const nearest = (t) => {
    let [low, high] = [0, points.length - 1];
    while (high - low > 1) {
      const half = (low + high) >> 1;
      if (middle(points[half]) < t) low = half; else high = half;
    }
    return Math.abs(middle(points[low]) - t) <= Math.abs(middle(points[high]) - t) ? low : high;
  };
  const look = (t) => {
    const index = nearest(t), point = points[index], end = Math.max(10, points[points.length - 1].t);
    at = middle(point);
    const rows = [];
    state.endpoints.forEach((row, k) => {
      const columns = point.e[k];
      if (!columns) return;
      const get = (name) => columns[column[name]], n = counted(columns);
      rows.push([row.endpoint, "", `s${k % 6}`], ["offered", rate(per("offered")(columns, point.s) ?? null)], ["achieved", rate(per("ok")(columns, point.s) ?? null)],
        ["P50", ms(get("p50_ms"), n)], ["P99", ms(get("p99_ms"), n)], ["unanswered", number(get("in_flight"))]);
      for (const name of ["failed", "dropped", "late"]) if (get(name)) rows.push([name, number(get(name))]);
    });
    state.devices.forEach((device, k) => {
      if (!point.d[k]) return;
      const known = names.devices.map((name, which) => [name, point.d[k][which]]).filter(([, value]) => value !== null);
      rows.push([device.name, known.map(([name, value]) => QUANTITIES[name][1](value)).join(", ")]);
    });
    const title = `${clock(point.t - point.s)} to ${clock(point.t)}`, table = make("table");
    for (const [name, value, className] of rows) {
      const line = table.insertRow();
      line.append(make("td", name, className), make("td", value));
    }
    const left = (100 * at) / end;
    cross.style.left = `${left}%`;
    show(cross, true);
    tip.replaceChildren(make("b", title), table);
    show(tip, true);
    const plots = probe.getBoundingClientRect(), figure = tip.parentElement.getBoundingClientRect();
    const place = plots.left - figure.left + (plots.width * left) / 100, wide = tip.offsetWidth;
    tip.style.left = `${Math.max(0, place + 14 + wide > figure.width ? place - 14 - wide : place + 14)}px`;
    probe.setAttribute("aria-valuenow", index);
    probe.setAttribute("aria-valuetext", `${title}: ${rows.map(([name, value]) => `${name} ${value}`).join(", ")}`);
  };
  const leave = () => { at = null; show(cross, false); show(tip, false); };
  probe.addEventListener("pointermove", (event) => {
    const box = probe.getBoundingClientRect(), end = Math.max(10, points[points.length - 1].t);
    look((end * (event.clientX - box.left)) / box.width);
  });
  probe.addEventListener("pointerleave", leave);
  probe.addEventListener("blur", leave);
  probe.addEventListener("focus", () => { if (probe.matches(":focus-visible") && points.length) look(Infinity); });
  probe.addEventListener("keydown", (event) => {
    if (event.key === "Escape") leave();
    const last = points.length - 1, here = at === null ? last : nearest(at), page = Math.max(1, Math.round(last / 10));
    const to = { ArrowRight: here + 1, ArrowUp: here + 1, ArrowLeft: here - 1, ArrowDown: here - 1,
      PageUp: here + page, PageDown: here - page, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    look(middle(points[Math.min(last, Math.max(0, to))]));
  });
  new ResizeObserver(() => { if (points.length) chart(); }).observe(svg.parentElement);

  // ---- theme

  const theme = document.querySelector(".theme");
  const dark = () => {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  const name = () => write(theme, dark() ? "Light" : "Dark");
  theme.addEventListener("click", () => { document.documentElement.dataset.theme = dark() ? "light" : "dark"; name(); });
  name();

  // ---- asking

  find("make").addEventListener("click", () => {
    show(find("make"), false);
    fetch("tailrate/report", { method: "POST" }).catch(() => {});
  });
  let lost = null;
  const ask = async () => {
    try {
      const answer = await fetch(`tailrate/now?after=${encodeURIComponent(cursor)}`, { cache: "no-store", signal: AbortSignal.timeout(5000) });
      if (!answer.ok || answer.redirected) throw new Error(answer.redirected ? "signed out" : `it answered ${answer.status}`);
      take(await answer.json());
      lost = null;
      show(find("connection"), false);
    } catch (problem) {
      lost ??= new Date();
      const why = problem.message === "signed out" ? "You are signed out: sign in on Locust's page, then load this one again."
        : `No connection to the load generator since ${lost.toLocaleTimeString()}; what is shown is from then. Trying again.`;
      if (!(problem instanceof TypeError || problem.name === "TimeoutError" || /^(signed|it answered)/.test(problem.message))) throw problem;
      write(find("connection"), why);
      show(find("connection"), true);
    } finally {
      setTimeout(ask, 1000);
    }
  };
  ask();
})();
