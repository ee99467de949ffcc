// The controls of plan.html: what they ask is simulated in a worker, and the figures and drawings follow.
// Where they ask what `tailrate plan` was asked, its own figures stand.
(() => {
  const { tag, significant, ms, rate, count } = chart;
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const made = JSON.parse(document.querySelector("#plan script").textContent);
  const words = wording(made), { tailName, counted, money, figures, conclusion, warnings } = words, draw = drawing(made, words);
  const desk = document.querySelector(".desk"), form = desk.querySelector(".controls"), said = form.querySelector(".said");
  const DEBOUNCE_MS = 100, SAY_MS = 150, EVEN = 100;
  const STALE = Symbol("something else was asked since");

  // ---- what is asked

  const NAMES = ["rate", "slo", "percentile", "burstiness", "variant", "replicas", "n_plus", "max_batch", "wait", "gpu_hour", "kwh", "co2"];
  const field = (name) => form.elements.namedItem(name);
  const OPTIONAL = new Set(["replicas", "gpu_hour", "kwh", "co2"]), WHOLE = new Set(["replicas", "n_plus", "max_batch"]);
  const LEAST = { rate: 1e-3, slo: 1e-3, burstiness: 0.01, replicas: 1, max_batch: 1 };
  const MOST = { rate: 1e8, slo: 1e7, burstiness: EVEN, replicas: 1e5, n_plus: 1000, wait: 3.6e6 };

  const variantOf = (state) => made.variants[state.variant];
  const settings = (variant) => ({ max_batch: variant.fleet.max_batch, wait: Number((1e3 * variant.fleet.batch_wait_s).toPrecision(6)) });
  /** As a number that can be asked for; what was there before where it is none. */
  const cleaned = (name, text, before, state) => {
    if (text === "" || text === null) return OPTIONAL.has(name) ? null : before;
    const value = WHOLE.has(name) ? Math.round(Number(text)) : Number(text);
    const most = name === "max_batch" ? variantOf(state).fleet.service.mean_s.length - 1 : MOST[name] ?? Infinity;
    return Number.isFinite(value) ? Math.min(most, Math.max(LEAST[name] ?? 0, value)) : before;
  };
  const read = (before) => {
    const state = { ...before, variant: Number(field("variant").value) };
    if (state.variant !== before.variant) return { ...state, ...settings(variantOf(state)) };
    for (const name of NAMES) if (name !== "variant") state[name] = cleaned(name, field(name).value, before[name], state);
    return state;
  };
  const nothing = Object.fromEntries(NAMES.map((name) => [name, null]));
  const planned = read({ ...nothing, variant: Number(field("variant").value) });
  const standard = (state) => ({ ...planned, ...(state.variant === planned.variant ? {} : settings(variantOf(state))), variant: state.variant });
  const differing = (state) => {
    const usual = standard(state);
    return NAMES.filter((name) => state[name] !== (name === "variant" ? planned.variant : usual[name]));
  };
  let state = planned;

  /** The address holds what differs from the plan, variants by their names. */
  const toHash = () => {
    const asked = new URLSearchParams(differing(state).map((name) => [name, name === "variant" ? variantOf(state).endpoint : state[name] ?? ""]));
    return [...asked].length ? `#${asked}` : "";
  };
  const fromHash = () => {
    const asked = new URLSearchParams(location.hash.slice(1));
    const variant = made.variants.findIndex(({ endpoint }) => endpoint === asked.get("variant"));
    const found = standard({ variant: variant < 0 ? planned.variant : variant });
    for (const [name, text] of asked) if (NAMES.includes(name) && name !== "variant") found[name] = cleaned(name, text, found[name], found);
    return found;
  };

  // ---- the sliders

  const reach = (slider) => {
    const name = slider.dataset.for, high = name === "max_batch" ? variantOf(state).fleet.service.mean_s.length - 1 : Number(slider.dataset.high);
    return { low: Number(slider.dataset.low), high, log: slider.dataset.log !== undefined, whole: slider.dataset.whole !== undefined };
  };
  const slid = (slider) => {
    const { low, high, log, whole } = reach(slider), share = Number(slider.value) / Number(slider.max);
    const value = log ? low * (high / low) ** share : low + share * (high - low);
    return whole ? Math.round(value) : Number(value.toPrecision(log ? 2 : 3));
  };
  const place = (slider, value) => {
    const { low, high, log, whole } = reach(slider);
    if (whole && !log) slider.max = high - low;
    const share = log ? Math.log(value / low) / Math.log(high / low) : (value - low) / Math.max(1e-9, high - low);
    slider.value = Math.round(Number(slider.max) * Math.min(1, Math.max(0, share)));
    slider.setAttribute("aria-valuetext", `${significant(value)} ${slider.parentElement.querySelector(".measure").textContent}`.trim());
  };
  /** Fields and sliders as the state has them; `found` is how many replicas it takes. */
  const show = (found = null) => {
    for (const name of NAMES) {
      const input = field(name);
      if (input !== document.activeElement || cleaned(name, input.value, null, state) !== state[name]) input.value = state[name] ?? "";
    }
    for (const slider of all("[data-for]", form)) {
      const value = state[slider.dataset.for] ?? (slider.dataset.for === "replicas" ? found : 0);
      if (value !== null && slider !== document.activeElement) place(slider, value);
    }
    for (const button of all("[data-auto]", form)) button.setAttribute("aria-pressed", String(state[button.dataset.auto] === null));
  };

  // ---- one simulation after another, away from the page

  const runner = () => {
    try {
      const source = `const { read } = (${simulator})(); onmessage = ({ data }) => postMessage(read(data));`;
      const worker = new Worker(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
      return (job) => new Promise((done) => { worker.onmessage = ({ data }) => done(data); worker.postMessage(job); });
    } catch { // a browser that allows none to a page from disk
      const own = simulator();
      return (job) => new Promise((done) => { setTimeout(() => done(own.read(job))); });
    }
  };
  const run = runner(), known = new Map();
  let generation = 0, busy = Promise.resolve();
  /** Answers from memory what was asked before, and nothing any more once the controls were moved. */
  const asker = (mine, variant) => async (job) => {
    const key = JSON.stringify([variant, { ...job, fleet: [job.fleet.replicas, job.fleet.max_batch, job.fleet.batch_wait_s] }]);
    if (!known.has(key)) {
      const before = busy;
      let free;
      busy = new Promise((done) => { free = done; });
      await before;
      try {
        if (mine !== generation) throw STALE;
        if (known.size > 20000) known.clear();
        known.set(key, await run(job));
      } finally { free(); }
    }
    if (mine !== generation) throw STALE;
    return known.get(key);
  };

  const question = (number, factor = 1) => {
    const variant = made.variants[number], chosen = number === state.variant, own = settings(variant);
    return {
      variant, number, chosen, rate: state.rate * made.peak * factor, mean: state.rate * made.mean * factor, nPlus: state.n_plus,
      maxBatch: chosen ? state.max_batch : own.max_batch, waitS: (chosen ? state.wait : own.wait) / 1e3,
      fixed: chosen ? state.replicas : null, limitMs: state.slo,
      burstiness: state.burstiness >= EVEN ? null : state.burstiness,
      slo: { latency: state.slo / 1e3, percentile: state.percentile, errors: made.errors ?? 1, goodput: made.goodput ?? 0 },
      prices: { gpuHour: state.gpu_hour, kwh: state.kwh, co2: state.co2 },
    };
  };

  // ---- as it is written

  const fills = new Map();
  for (const node of all("[data-fill]")) fills.set(node.dataset.fill, [...(fills.get(node.dataset.fill) ?? []), [node, node.textContent]]);
  const fill = (key, text) => { for (const [node] of fills.get(key) ?? []) node.textContent = text; };
  /** Nothing is shown of what nothing is known of. */
  const unclutter = () => {
    for (const tile of all(".tiles > div")) tile.hidden = tile.querySelector("dd").textContent === "–";
    for (const head of all("th[data-column]")) {
      const cells = all(`td[data-column="${head.dataset.column}"]`), empty = cells.every((cell) => cell.textContent === "–");
      for (const cell of [head, ...cells]) cell.hidden = empty;
    }
  };
  const bars = document.querySelector("[data-warnings]"), barsMade = [...bars.children];
  const short = (text) => { form.querySelector(".short").textContent = text; };

  const tile = (key) => document.querySelector(`.tiles dd[data-fill="${key}"]`);
  const write = (found) => {
    fill("conclusion", conclusion(found));
    for (const [key, text] of Object.entries(figures(found))) fill(key, text);
    bars.replaceChildren(...warnings(found).map((text) => tag("li", {}, text)));
    const hold = found.replicas === null ? "no number of replicas" : counted(found.replicas, "replica");
    short([hold, found.replicas === null ? null : `${tailName(found.asked)} ${ms(1e3 * found.tail)}`, found.bill?.hour == null ? null : `${money(found.bill.hour)}/h`].filter(Boolean).join(" · "));
    document.body.classList.toggle("missed", found.replicas === null || !found.kept || !found.survives);
    for (const [key, fine] of [["tail", found.kept], ["after_loss", found.survives]]) tile(key)?.classList.toggle("bad", fine === false);
  };
  const writeVariants = (answers) => {
    for (const found of answers) {
      const texts = figures(found), { number } = found.asked;
      for (const node of all(`[data-variant="${number}"] [data-column]`)) fill(`${number}.${node.dataset.column}`, texts[node.dataset.column] ?? (node.dataset.column === "replicas" ? "none" : "–"));
      const refused = document.querySelector(`[data-refused="${number}"]`);
      refused.hidden = found.replicas !== null;
      if (found.replicas === null) refused.textContent = conclusion(found);
    }
    const price = ({ kept, survives, bill, gpus, replicas }) => (replicas === null || !kept || !survives ? Infinity : bill.hour ?? gpus);
    const best = answers.reduce((one, other) => (price(other) < price(one) ? other : one));
    for (const row of all("[data-variant]")) row.classList.toggle("best", price(best) < Infinity && Number(row.dataset.variant) === best.asked.number);
    const others = answers.filter(({ asked }) => !asked.chosen).map((found) =>
      `${found.asked.variant.endpoint} ${found.replicas === null ? "cannot" : `takes ${counted(found.replicas, "replica")}`}`);
    fill("more", others.length ? ` ${others.join("; ")}.` : "");
    unclutter();
  };

  /** By the knees that costs are drawn from, but for today's rate. */
  const writeGrowth = async (ask, chosen, knees) => {
    for (const [n, { factor }] of made.growth.entries()) {
      const asked = question(state.variant, factor), few = sizing.needed(knees.get(state.variant) ?? [], asked.rate);
      const replicas = factor === 1 && state.replicas === null ? chosen.replicas : few && few + asked.nPlus;
      const mean = replicas === null ? null : await sizing.read(ask, asked, replicas, { rate: asked.mean, share: sizing.DRAFT });
      const texts = replicas === null ? { replicas: "none", gpus: "–", hour: "–" } : { replicas: count(replicas), gpus: count(sizing.gpus(asked, replicas)),
        hour: money(sizing.bill(asked, replicas, mean.utilisation, asked.mean).hour) };
      for (const [key, text] of Object.entries({ rate: rate(state.rate * factor), ...texts })) fill(`growth.${n}.${key}`, text);
    }
  };

  // ---- when something is asked

  const restore = () => {
    for (const nodes of fills.values()) for (const [node, text] of nodes) node.textContent = text;
    bars.replaceChildren(...barsMade);
    draw.restore();
    for (const row of all("[data-variant]")) row.classList.toggle("best", Number(row.dataset.variant) === made.best);
    for (const note of all("[data-refused]")) note.hidden = !note.dataset.was;
    document.body.classList.remove("missed", "computing");
    for (const found of all(".tiles .bad")) found.classList.remove("bad");
    short("");
    said.textContent = "";
    unclutter();
  };
  for (const note of all("[data-refused]")) if (!note.hidden) [note.dataset.was, note.dataset.made] = ["yes", note.textContent];

  const work = async () => {
    const mine = ++generation, begun = performance.now();
    const changed = differing(state).length > 0;
    for (const note of all(".as-made")) note.hidden = !changed;
    show();
    if (!changed) {
      restore();
      desk.dataset.state = "planned";
      return;
    }
    desk.dataset.state = "working";
    const told = (found) => {
      write(found);
      show(found.replicas);
      if (desk.dataset.state === "working") desk.dataset.ms = Math.round(performance.now() - begun);
      document.body.classList.remove("computing");
      desk.dataset.state = "answered";
    };
    const saying = setTimeout(() => {
      said.textContent = "computing …";
      document.body.classList.toggle("computing", desk.dataset.state === "working");
    }, SAY_MS);
    try {
      const asks = made.variants.map((_, number) => asker(mine, number));
      const numbers = [state.variant, ...made.variants.keys()].filter((number, n, list) => list.indexOf(number) === n), answers = [];
      for (const number of numbers) {
        answers.push(await sizing.answer(asks[number], question(number), answers.length ? undefined : told));
        if (answers.length === 1) told(answers[0]);
      }
      const [chosen] = answers;
      answers.sort((a, b) => a.asked.number - b.asked.number);
      writeVariants(answers);
      await draw.byRate(asks, answers);
      await draw.byReplicas(asks, answers);
      await writeGrowth(asks[state.variant], chosen, await draw.cost(asks, answers));
      clearTimeout(saying);
      said.textContent = "";
      desk.dataset.state = "done";
    } catch (problem) {
      clearTimeout(saying);
      if (problem !== STALE) throw problem;
    }
  };
  let waiting = 0;
  const ask = (now) => {
    generation += 1;
    clearTimeout(waiting);
    waiting = setTimeout(work, now ? 0 : DEBOUNCE_MS);
    desk.dataset.state = "working";
  };
  const moved = () => {
    state = read(state);
    show(state.replicas);
    history.replaceState(null, "", toHash() || location.pathname + location.search);
    ask();
  };

  const copy = async () => {
    const variant = variantOf(state), slo = [`p${state.percentile}<${state.slo}ms`];
    if (made.errors !== null) slo.push(`errors<${Number((100 * made.errors).toPrecision(6))}%`);
    if (made.goodput !== null) slo.push(`goodput>${Number((100 * made.goodput).toPrecision(6))}%`);
    const options = [["--rate", state.rate], ["--slo", slo.join(", ")]];
    if (state.n_plus) options.push(["--n-plus", state.n_plus]);
    if (state.burstiness !== 1) options.push(["--burst", state.burstiness >= EVEN ? "constant" : `gamma:${state.burstiness}`]);
    if (state.max_batch !== variant.measured.max_batch) options.push(["--max-batch", state.max_batch]);
    if (state.wait !== variant.measured.wait_ms) options.push(["--max-wait-ms", state.wait]);
    for (const [name, option] of [["gpu_hour", "--gpu-hour"], ["kwh", "--kwh"], ["co2", "--co2"]]) if (state[name] !== null) options.push([option, state[name]]);
    if (state.variant !== planned.variant) options.push(["--endpoint", variant.endpoint]);
    const done = await copying.copy([...made.command, ...options.flat()].map(copying.quoted).join(" "), form.elements.copy);
    copying.say(said, !done ? "Copying is not allowed here" : state.replicas === null ? "Copied" : "Copied; the command counts the replicas itself");
  };

  form.hidden = false;
  desk.classList.add("live");
  for (const part of all(".scripted-only")) part.hidden = false;
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", ({ target }) => {
    if (target.dataset.for) {
      field(target.dataset.for).value = slid(target);
      target.setAttribute("aria-valuetext", `${field(target.dataset.for).value} ${target.parentElement.querySelector(".measure").textContent}`.trim());
    }
    moved();
  });
  form.addEventListener("change", () => show(state.replicas));
  for (const button of all("[data-auto]", form)) {
    button.addEventListener("click", () => { field(button.dataset.auto).value = ""; moved(); });
  }
  form.addEventListener("reset", (event) => {
    event.preventDefault();
    state = planned;
    history.replaceState(null, "", location.pathname + location.search);
    ask(true);
  });
  form.elements.copy.addEventListener("click", copy);
  addEventListener("hashchange", () => {
    if (location.hash === "#main" || document.getElementById(location.hash.slice(1))) return; // a link within the page
    state = fromHash();
    ask(true);
  });
  state = document.getElementById(location.hash.slice(1)) ? planned : fromHash();
  work();
})();
