// Replicas, knees and costs from single simulations, as `tailrate.analysis.planning.plan.sizing`, `tailrate.analysis.planning.plan.plan` and `tailrate.analysis.planning.plan.prices` find them.
// `asked` is one question: a variant with its settings, traffic, objective and prices; `ask` runs one simulation of it.
const sizing = (() => {
  const SEEDS = [1, 2, 3], MOST = 2 ** 19, BEYOND = 1000, PER_REPLICA = 500, BATCHES_LONG = 100, WARM = 0.1;
  const LONELY = 0.02, STEP = 1.12, NEAR = 1.06, PROBE = 1.05, TOLERANCE = 0.005;
  const PLACES = 14, SEEN = 40, DRAFT = 1 / 2, JOULES_PER_KWH = 3.6e6;

  const fleetOf = ({ variant, maxBatch, waitS }, replicas) => ({ ...variant.fleet, replicas, max_batch: maxBatch, batch_wait_s: waitS });
  /** Of one replica that always has a batch of the best size that is allowed. */
  const limitRps = ({ variant, maxBatch }) =>
    Math.max(...Array.from({ length: maxBatch }, (_, k) => (k + 1) / variant.fleet.service.mean_s[k + 1]));
  // what full batches do, which any queue makes of them; with awaiting batches the simulation itself has to show it
  const stableRps = (asked) => {
    const { rule, service } = asked.variant.fleet;
    return rule === "awaiting" ? limitRps(asked) : asked.maxBatch / service.mean_s[asked.maxBatch];
  };
  const stableFrom = (asked) => Math.floor(asked.rate / stableRps(asked) + 1e-9) + 1;
  const lonelyFrom = (asked) =>
    Math.max(stableFrom(asked), Math.ceil((asked.rate * (asked.variant.fleet.service.mean_s[1] + asked.waitS)) / LONELY));

  /** How many arrivals show it; the page is content with fewer than the command where there are many replicas. */
  const count = ({ variant, maxBatch, waitS, slo }, replicas, rate) => {
    const beyond = 1 - Math.max(slo.percentile / 100, slo.goodput), longest = variant.fleet.service.mean_s[maxBatch] + waitS;
    const least = Math.max(BEYOND / beyond / (1 - WARM), PER_REPLICA * replicas, BATCHES_LONG * longest * rate);
    return Math.min(MOST, 2 ** Math.ceil(Math.log2(least)));
  };
  const read = (ask, asked, replicas, { rate = asked.rate, seed = SEEDS[0], lost = 0, share = 1, ...other } = {}) => {
    const { slo, burstiness } = asked, percentiles = [50, slo.percentile];
    return ask({ fleet: fleetOf(asked, replicas), rate, seed, lost, slo, burstiness, percentiles, count: share * count(asked, replicas, rate), ...other });
  };

  /** Two of three are most. */
  const agree = async (keeps) => {
    const [one, two] = [await keeps(SEEDS[0]), await keeps(SEEDS[1])];
    return one === two ? one : keeps(SEEDS[2]);
  };
  const holds = (ask, asked, replicas) => agree(async (seed) => (await read(ask, asked, replicas, { seed })).kept);
  const survives = (ask, asked, replicas) =>
    agree(async (seed) => (await read(ask, asked, replicas, { seed, lost: asked.nPlus })).kept);
  /** Requests that never meet another one. */
  const alone = (ask, asked) => {
    const { mean_s: mean, spread, spread_class: of } = asked.variant.fleet.service;
    const gap = 10 * (asked.waitS + mean[1] * Math.max(...spread[of[1]]));
    return read(ask, asked, 1, { rate: 1 / gap, burstiness: null, count: 2 ** 14 });
  };

  /** The fewest replicas that hold the objective; null where no number does. */
  const fewest = async (ask, asked, near = null) => {
    const least = stableFrom(asked), most = lonelyFrom(asked), known = new Map([[least - 1, false]]);
    const keeps = async (replicas) => {
      if (!known.has(replicas)) known.set(replicas, (await read(ask, asked, replicas)).kept);
      return known.get(replicas);
    };
    let low, high;
    if ((await alone(ask, asked)).kept) {
      const start = Math.min(most, Math.max(least, near ?? least));
      [low, high] = [start - 1, start];
      let step = 1;
      if (await keeps(start)) {
        while (low >= least && (await keeps(low))) [low, high, step] = [Math.max(least - 1, low - 2 * step), low, 2 * step];
      } else {
        for (; !(await keeps(high)); step *= 2) {
          if (high >= most) return null;
          [low, high] = [high, Math.min(most, high + step)];
        }
      }
    } else { // company may come in time where there are few replicas
      if (!asked.waitS || !(await alone(ask, { ...asked, waitS: 0 })).kept) return null;
      for ([low, high] = [least - 1, least]; !(await keeps(high));) {
        [low, high] = [high, Math.max(high + 1, Math.ceil(1.1 * high))];
        if (high > most) return null;
      }
    }
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (await keeps(middle)) high = middle;
      else low = middle;
    }
    if (await holds(ask, asked, high)) {
      while (high > least && (await holds(ask, asked, high - 1))) high--;
      return high;
    }
    for (high++; high <= most; high++) if (await holds(ask, asked, high)) return high;
    return null;
  };
  const fewestAfterLoss = async (ask, asked, near = null) => {
    const found = await fewest(ask, asked, near === null ? null : near - asked.nPlus);
    if (found === null || !asked.nPlus) return found;
    for (let replicas = found + asked.nPlus, most = lonelyFrom(asked) + asked.nPlus; replicas <= most; replicas++) {
      if (await survives(ask, asked, replicas)) return replicas;
    }
    return null;
  };

  /** The highest rate at which so many replicas hold the objective; zero where there is none. `near`: a guess. */
  const knee = async (ask, asked, replicas, near = Infinity, share = 1) => {
    const limit = limitRps(asked) * replicas, lowest = limit / 100, highest = Math.min(1.1 * limit, NEAR * near);
    const drawn = share * count(asked, replicas, limit);
    let fails = highest, good = highest;
    const keeps = async (rate) => (await read(ask, asked, replicas, { rate, count: drawn })).kept;
    while (!(await keeps(good))) {
      if (good <= lowest) return 0;
      [fails, good] = [good, Math.max(good / STEP, lowest)];
    }
    while (fails > good * (1 + TOLERANCE)) {
      const middle = (good + fails) / 2;
      if (await keeps(middle)) good = middle;
      else fails = middle;
      if (fails <= good * (1 + TOLERANCE) && good * PROBE < highest && (await keeps(good * PROBE))) [good, fails] = [good * PROBE, highest];
    }
    return good;
  };

  const gpus = ({ variant }, replicas) => Math.ceil(replicas / variant.per_gpu);
  /** Money, energy and emissions of a fleet that stands all day and answers `mean` requests a second. */
  const bill = (asked, replicas, utilisation, mean) => {
    const { variant, prices } = asked, devices = gpus(asked, replicas), { idle_w: idle, active_w: active } = variant;
    const power = idle == null || active == null ? null : devices * variant.measured_per_gpu * idle + replicas * (active - idle) * utilisation;
    const rent = prices.gpuHour === null ? null : devices * prices.gpuHour;
    const current = prices.kwh === null || power === null ? null : (power / 1000) * prices.kwh;
    const hour = rent === null && current === null ? null : (rent ?? 0) + (current ?? 0);
    const joules = power === null ? null : power / mean;
    return { hour, million: hour === null ? null : (hour / (mean * 3600)) * 1e6, joules,
      co2: joules === null || prices.co2 === null ? null : ((joules * 1e6) / JOULES_PER_KWH) * prices.co2 * 1000 };
  };

  /** Told twice: as soon as there is a fleet, and with all that takes longer; a fleet of a fixed size may miss the objective. */
  const answer = async (ask, asked, tell = () => {}) => {
    const { fixed, nPlus: most } = asked;
    const replicas = fixed ?? (await fewestAfterLoss(ask, asked));
    if (replicas === null) return { asked, replicas, alone: await alone(ask, asked) };
    const seen = (other) => read(ask, asked, replicas, other);
    const three = [];
    for (const seed of SEEDS) three.push(await seen({ seed }));
    const [, middle] = three.sort((a, b) => a.at[1] - b.at[1]);
    const mean = asked.mean === asked.rate ? middle : await seen({ rate: asked.mean });
    const found = {
      asked, replicas, gpus: gpus(asked, replicas), tail: middle.at[1], utilisation: middle.utilisation, batch: middle.batch,
      low: null, high: null, lost: null, knee: null, bill: bill(asked, replicas, mean.utilisation, asked.mean),
      kept: fixed === null || (await holds(ask, asked, replicas)),
      survives: fixed === null || !most || (most < replicas && (await survives(ask, asked, replicas))),
    };
    tell(found);
    if (most) found.lost = most < replicas ? (await seen({ lost: most })).at[1] : Infinity;
    found.knee = await knee(ask, asked, replicas);
    const { error } = asked.variant;
    if (error !== null) {
      found.low = Math.min(found.tail, (await seen({ rate: asked.rate * (1 - error) })).at[1]);
      found.high = Math.max(found.tail, (await seen({ rate: asked.rate * (1 + error) })).at[1]);
    }
    return found;
  };

  /** Rates up to where queues grow for ever, closer together where the curve bends. */
  const slopes = (asked, replicas) => Array.from({ length: PLACES }, (_, k) => replicas * limitRps(asked) * (1 - (1 - (k + 1) / PLACES) ** 1.7));
  /** 1, 2, 3, 4, 6, 8, 12 … to beyond a rate, without those that are too few to be seen; each with its knee. */
  const kneesTo = async (ask, asked, most) => {
    const found = [], last = Math.ceil(most / limitRps(asked));
    for (let k = 1, near = Infinity; k < 1e6; k = k < 4 ? k + 1 : Number.isInteger(Math.log2(k)) ? 1.5 * k : (4 * k) / 3) {
      if (k * SEEN < last) continue;
      const at = await knee(ask, asked, k, near * k, DRAFT / 2);
      if (!at) break;
      found.push([k, at]);
      if (at >= most) break;
      near = k < 4 ? Infinity : at / k;
    }
    return found;
  };
  /** The fewest replicas whose knee is not below a rate; null beyond the last. */
  const needed = (knees, wanted) => {
    let [before, at] = [0, 0];
    for (const [replicas, knee] of knees) {
      if (knee >= wanted) return Math.max(before + 1, Math.ceil(before + ((wanted - at) / (knee - at)) * (replicas - before) - 1e-9));
      [before, at] = [replicas, knee];
    }
    return null;
  };

  return { DRAFT, answer, read, gpus, bill, stableFrom, slopes, kneesTo, needed };
})();
