// The drawings of a plan for what is asked now, with the marks and words of `plancharts`; each in place of the one in the markup.
const drawing = (made, { tailName, counted, money, conclusion }) => {
  const { ms, rate, count, labels, latencyTick, rateTick } = chart;
  const { DRAFT, read, gpus, stableFrom, slopes, kneesTo, needed } = sizing;
  const CEILING = 2.5, SIZES = 8, STEPS = 200;
  const noun = made.variants.every(({ cpu }) => cpu) ? "machines" : "GPUs";

  const below = (value, ceiling) => (value <= ceiling ? value : Infinity);
  const known = (answers) => answers.filter(({ replicas }) => replicas !== null);
  const demand = (area, at, pixel) => {
    area.upright(at, "demand");
    area.text(at, pixel, rate(at), "demand");
  };
  /** On the straight line between the two points around x. */
  const between = (points, x, place) => {
    const k = points.findIndex(([at]) => at >= x), [a, b] = [points[Math.max(0, k - 1)], points[k]];
    return a === b || b[place] === Infinity ? b[place] : a[place] + ((b[place] - a[place]) * (x - a[0])) / (b[0] - a[0]);
  };

  const put = (id, title, note, svg, places, room = 0) => {
    const figure = document.getElementById(id);
    if (!figure) return; // nothing could be planned
    for (const [node, text] of [[figure.querySelector("strong"), title], [figure.querySelector("figcaption span"), note]]) {
      node.dataset.made ??= node.textContent;
      node.textContent = text;
    }
    const was = figure.querySelector(".plots:not(.now)"), now = panel.plots(svg, title, places.sort((a, b) => a.at - b.at), switchedOff, room);
    was.hidden = true;
    figure.querySelector(".now")?.remove();
    now.classList.add("now");
    was.after(now);
    for (const series of switchedOff()) {
      for (const mark of now.querySelectorAll(`[data-series="${series}"]`)) mark.classList.add("off");
    }
  };
  const restore = () => {
    for (const now of document.querySelectorAll(".now")) now.remove();
    for (const was of document.querySelectorAll(".plots[hidden]")) was.hidden = false;
    for (const node of document.querySelectorAll("[data-made]")) node.textContent = node.dataset.made;
  };

  const byRate = async (asks, answers) => {
    const drawn = [];
    for (const found of known(answers)) {
      const { asked, replicas } = found, points = [];
      for (const at of slopes(asked, replicas)) {
        const { at: [p50, tail] } = await read(asks[asked.number], asked, replicas, { rate: at, share: DRAFT });
        points.push([at, 1e3 * p50, 1e3 * tail]);
      }
      drawn.push([found, points]);
    }
    if (!drawn.length) return;
    const chosen = answers.find(({ asked }) => asked.chosen), { asked: { rate: wanted, limitMs } } = chosen, ceiling = CEILING * limitMs;
    const lowest = Math.min(...drawn.flatMap(([, points]) => points.map(([, p50]) => p50)));
    const area = panel.area(chart.scale(0, 1.15 * Math.max(wanted, ...drawn.map(([{ knee }]) => knee))), chart.fitting([lowest, ceiling]), 340);
    if (chosen.replicas !== null) area.shade(chosen.asked.variant.highest_rps * chosen.replicas, area.x.high, "beyond");
    area.grid(labels(area.y, 8, latencyTick));
    area.xTicks(labels(area.x, 8, rateTick));
    area.rule(limitMs, "slo");
    demand(area, wanted, -8);
    const ends = [[limitMs, "objective", "slo"]], tail = tailName(chosen.asked);
    for (const [{ asked: { variant, number }, knee }, points] of drawn) {
      for (const [k, kind, name] of [[1, "p50", "P50"], [2, "p99", tail]]) {
        const line = points.filter(([at]) => at <= area.x.high).map((point) => [point[0], below(point[k], ceiling)]);
        const finite = line.filter(([, value]) => value < Infinity);
        area.line(line, `${kind} s${number}`);
        if (finite.length) ends.push([finite[finite.length - 1][1], `${variant.short} ${name}`, `s${number}`]);
      }
      if (knee) area.dot(knee, limitMs, `dot s${number}`);
    }
    area.endLabels(ends);
    const places = drawn.flatMap(([, points]) => points.map(([at]) => at)).filter((at) => at <= area.x.high).map((at) => {
      const there = drawn.filter(([, points]) => points[0][0] <= at && at <= points[points.length - 1][0]);
      const values = there.flatMap(([{ asked: { number, variant } }, points]) =>
        [[2, tail], [1, "P50"]].map(([k, name]) => [number, `${variant.short} ${name}`, ms(between(points, at, k))]));
      return { at: area.x(at), title: rate(at), values };
    });
    const fleets = drawn.map(([{ asked, replicas }]) => `${count(replicas)} of ${asked.variant.short}`).join(", ");
    put("latency", "Latency against rate", `Simulated with every replica up: ${fleets}.`, area.svg(`Chart. ${conclusion(chosen)}`, 26, 26),
      places, 2 + Math.min(24, Math.max(...ends.map(([, text]) => text.length))));
  };

  const byReplicas = async (asks, answers) => {
    const drawn = [];
    for (const { asked, replicas } of known(answers)) {
      const first = Math.max(1, Math.min(stableFrom(asked), replicas), replicas - asked.nPlus - SIZES / 2), points = [];
      for (let k = first; k < replicas + SIZES / 2; k++) points.push([k, 1e3 * (await read(asks[asked.number], asked, k, { share: DRAFT })).at[1]]);
      drawn.push([asked, replicas, points]);
    }
    if (!drawn.length) return;
    const all = drawn.flatMap(([, , points]) => points), sizes = all.map(([k]) => k), { rate: wanted, limitMs, nPlus, fixed } = drawn[0][0];
    const ceiling = Math.max(1.2 * limitMs, Math.min(CEILING * limitMs, Math.max(...all.map(([, value]) => value))));
    const area = panel.area(chart.scale(Math.min(...sizes) - 0.5, Math.max(...sizes) + 0.5), chart.linear([ceiling]), 240), places = [];
    const tail = tailName(drawn[0][0]);
    area.grid(labels(area.y, 5, latencyTick));
    area.xTicks(labels(area.x, 8).filter(([value]) => Number.isInteger(value)));
    area.rule(limitMs, "slo");
    for (const [{ variant, number }, replicas, points] of drawn) {
      area.line(points.map(([k, value]) => [k, below(value, ceiling)]), `p99 s${number}`);
      for (const [k, value] of points) {
        area.dot(k, below(value, ceiling), `dot s${number}${k === replicas ? "" : " hollow"}`, { radius: k === replicas ? 5 : 3 });
        places.push({ at: area.x(k), title: counted(k, "replica"), values: [[number, `${variant.short} ${tail}`, ms(value)]] });
      }
    }
    const lost = nPlus ? `; with ${nPlus} lost, read ${nPlus} to the left` : "";
    put("replicas", `${tail} by replicas`, `At ${rate(wanted)}; filled: ${fixed === null ? "planned" : "asked for"}${lost}.`,
      area.svg(`Chart. ${tail} by number of replicas at ${rate(wanted)}.`, 10, 26), places);
  };

  /** By variant the knees that it was drawn from. */
  const cost = async (asks, answers) => {
    const { rate: wanted, nPlus, prices } = answers[0].asked, most = made.most * wanted, priced = prices.gpuHour !== null, unit = prices.gpuHour ?? 1;
    const drawn = [], knees = new Map();
    for (const { asked } of known(answers)) {
      const found = await kneesTo(asks[asked.number], asked, most);
      const few = Array.from({ length: STEPS + 1 }, (_, k) => (most * k) / STEPS).map((at) => [at, needed(found, Math.max(at, 1e-9))]);
      knees.set(asked.number, found);
      drawn.push([asked, few.filter(([, k]) => k !== null).map(([at, k]) => [at, gpus(asked, k + nPlus)])]);
    }
    if (!drawn.length) return knees;
    const area = panel.area(chart.scale(0, most), chart.linear(drawn.flatMap(([, stairs]) => stairs.map(([, k]) => unit * k))), 240), places = new Map();
    area.grid(labels(area.y, 5));
    area.xTicks(labels(area.x, 5, rateTick));
    demand(area, wanted, -4);
    for (const [{ variant, number }, stairs] of drawn) {
      area.line(stairs.flatMap(([at, k], n) => (n ? [[at, unit * stairs[n - 1][1]], [at, unit * k]] : [[at, unit * k]])), `p99 s${number}`);
      for (const [at, k] of stairs.filter((_, n) => n % 5 === 0)) {
        if (!places.has(at)) places.set(at, { at: area.x(at), title: rate(at), values: [] });
        places.get(at).values.push([number, variant.short, `${counted(k, variant.cpu ? "machine" : "GPU")}${priced ? `, ${money(unit * k)}` : ""}`]);
      }
    }
    const title = `${priced ? `${made.currency || "Cost"} an hour` : noun} against rate`, spare = nPlus ? `, ${nPlus} of the replicas to spare` : "";
    put("cost", title, `As many ${noun} as hold the objective${spare}${priced ? "; without electricity." : "."}`,
      area.svg(`Chart. ${title}, by variant.`, 16, 26), [...places.values()]);
    return knees;
  };

  return { byRate, byReplicas, cost, restore };
};
