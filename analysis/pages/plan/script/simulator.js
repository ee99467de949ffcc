// The simulated fleet of `tailrate.analysis.planning.simulator.event_loop` once more, for the page: same random numbers, same order, same latencies.
// One function without surroundings, so that its text can become a worker. It looks no further than its arguments.
const simulator = () => {
  const RULES = ["opportunistic", "company", "blocking", "awaiting"], [OPPORTUNISTIC, , BLOCKING, AWAITING] = [0, 1, 2, 3];
  const ROUTINGS = ["two_choices", "least", "round_robin", "random"], [TWO_CHOICES, LEAST, ROUND_ROBIN] = [0, 1, 2];
  const STAMPS = 2 ** 26, DOWN = 2 ** 52; // a replica's key for leastconn is requests · STAMPS + stamp, exact below 2⁵³

  // random numbers
  const draw = (stream) => { // sfc32
    const b = stream[1], c = stream[2], out = (stream[0] + b + stream[3]) | 0;
    stream[0] = b ^ (b >>> 9);
    stream[1] = c + (c << 3);
    stream[2] = ((c << 21) | (c >>> 11)) + out;
    stream[3] += 1;
    return out >>> 0;
  };
  const seeded = (seed) => {
    const stream = Int32Array.of(0, seed, 0, 1);
    for (let k = 0; k < 12; k++) draw(stream);
    return stream;
  };
  const below = (stream, count) => Math.floor((draw(stream) * count) / 2 ** 32);
  const mix = (seed, index) => {
    let x = (index + Math.imul(seed, 0x9e3779b9)) | 0;
    x = Math.imul(x ^ (x >>> 16), 0x85ebca6b);
    x = Math.imul(x ^ (x >>> 13), 0xc2b2ae35);
    return (x ^ (x >>> 16)) >>> 0;
  };

  // trees of minima: leaf r of k is at [k + r], the minimum of all at [1]
  const put = (tree, leaf, value) => {
    let at = (tree.length >> 1) + leaf;
    tree[at] = value;
    for (at >>= 1; at; at >>= 1) {
      const lower = Math.min(tree[2 * at], tree[2 * at + 1]);
      if (tree[at] === lower) break;
      tree[at] = lower;
    }
  };
  const lowest = (tree) => {
    const leaves = tree.length >> 1;
    let at = 1;
    while (at < leaves) at = 2 * at + (tree[2 * at] !== tree[at] ? 1 : 0);
    return at - leaves;
  };
  const weigh = (w, r, up) => {
    w.stamp += 1;
    put(w.loads, r, (up ? (w.waiting[r] + w.running[r]) * STAMPS : DOWN) + w.stamp);
  };

  // one replica
  const beside = ({ waking: { from_s: from, full_s: full, extra_s: extra }, telling }, idle, size) =>
    Math.max(0, -idle) - telling[size] + (Math.max(0, idle) >= full ? extra : extra * Math.max(0, (idle - from) / (full - from)));
  const start = (w, r, now, size) => {
    const head = w.head[r], { latency, arrivals, link } = w;
    const usual = w.mean[size] * w.spread[w.spreadClass[size] * w.spreads + (mix(w.seed, head) & (w.spreads - 1))];
    const busy = Math.max(0, usual + beside(w, now - w.told[r], size));
    const done = now + busy;
    let i = head;
    for (let k = 0; k < size; k++) {
      latency[i] = done + w.after[size] - arrivals[i];
      i = link[i];
    }
    w.first[r] = head;
    w.head[r] = i;
    w.waiting[r] -= size;
    w.running[r] = size;
    w.done[r] = done;
    w.close[r] = Infinity;
    w.batches[size] += 1;
    w.busy += busy;
    if (done > w.last) w.last = done;
  };

  const blocking = (w, r, now) => {
    const open = w.open[r], most = w.maxBatch;
    if (open && (open >= most || now >= w.close[r])) {
      start(w, r, now, Math.min(open, most));
      w.open[r] = open > most ? w.waiting[r] : 0;
      if (w.waiting[r]) w.close[r] = now + w.wait;
      return;
    }
    w.open[r] = 0;
    if (w.waiting[r] >= most || now >= w.close[r] || w.wait === 0) {
      start(w, r, now, Math.min(w.waiting[r], most));
      w.open[r] = w.waiting[r];
      if (w.waiting[r]) w.close[r] = now + w.wait;
    } else if (w.close[r] === Infinity) w.close[r] = now + w.wait;
  };

  const awaiting = (w, r, now) => {
    if (w.open[r] && (w.open[r] >= w.maxBatch || now >= w.close[r])) {
      w.size[w.opened[r]] = w.open[r];
      w.open[r] = 0;
      w.closed[r] += 1;
      w.close[r] = Infinity;
    }
    if (w.closed[r] && !w.running[r]) {
      const close = w.close[r];
      start(w, r, now, w.size[w.head[r]]);
      w.closed[r] -= 1;
      w.close[r] = close;
    }
  };

  const decide = (w, r, now) => {
    if (w.rule === AWAITING) {
      awaiting(w, r, now);
      w.next[r] = Math.min(w.done[r], w.close[r]);
      return;
    }
    if (w.waiting[r]) {
      if (w.rule === BLOCKING) blocking(w, r, now);
      else {
        const enough = w.rule === OPPORTUNISTIC ? w.maxBatch : Math.min(2, w.maxBatch);
        if (w.waiting[r] >= enough || now >= w.close[r] || w.wait === 0) start(w, r, now, Math.min(w.waiting[r], w.maxBatch));
        else if (w.close[r] === Infinity) w.close[r] = now + w.wait;
      }
    }
    w.next[r] = w.running[r] ? w.done[r] : w.close[r];
  };

  const advance = (w, r, until) => {
    while (w.next[r] <= until) {
      const now = w.next[r];
      if (now === w.done[r]) {
        w.told[r] = now + w.telling[w.running[r]];
        w.running[r] = 0;
        w.done[r] = Infinity;
      }
      decide(w, r, now);
    }
  };

  const join = (w, r, i, now) => {
    if (w.queue && w.waiting[r] >= w.queue) {
      w.latency[i] = Infinity;
      w.refused += 1;
      return;
    }
    if (w.waiting[r]) w.link[w.tail[r]] = i;
    else w.head[r] = i;
    w.tail[r] = i;
    w.waiting[r] += 1;
    if (w.rule === AWAITING) {
      if (w.open[r] === 0) {
        w.opened[r] = i;
        w.close[r] = now + w.wait;
      }
      w.open[r] += 1;
      decide(w, r, now);
    } else if (!w.running[r]) {
      if (w.wake && w.waiting[r] < w.maxBatch) w.close[r] = w.next[r] = Math.min(w.close[r], now + w.wake);
      else decide(w, r, now);
    }
  };

  // the fleet
  const settleDue = (w, until) => {
    while (w.events[1] <= until) {
      const r = lowest(w.events), before = w.waiting[r] + w.running[r];
      advance(w, r, w.next[r]);
      put(w.events, r, w.next[r]);
      if (w.waiting[r] + w.running[r] !== before) weigh(w, r, w.loads[(w.loads.length >> 1) + r] < DOWN);
    }
  };
  const settle = (w, until) => {
    if (w.routing === LEAST) settleDue(w, until);
    else for (let r = 0; r < w.next.length; r++) advance(w, r, until);
  };

  const route = (w, up, from, to) => {
    const count = up.length;
    for (let i = from; i < to; i++) {
      const now = w.arrivals[i];
      if (!count) {
        w.latency[i] = Infinity;
        w.refused += 1;
        continue;
      }
      if (w.routing === LEAST) {
        settleDue(w, now);
        const r = lowest(w.loads);
        join(w, r, i, now);
        put(w.events, r, w.next[r]);
        weigh(w, r, true);
        continue;
      }
      let at = 0;
      if (w.routing === ROUND_ROBIN) {
        at = w.turn < count ? w.turn : 0;
        w.turn = at + 1;
      } else if (count > 1) at = below(w.stream, count);
      let r = up[at];
      advance(w, r, now);
      if (w.routing === TWO_CHOICES && count > 1) {
        const other = below(w.stream, count - 1), q = up[other + (other >= at ? 1 : 0)];
        advance(w, q, now);
        if (w.waiting[q] + w.running[q] < w.waiting[r] + w.running[r]) r = q;
      }
      join(w, r, i, now);
    }
  };

  const fail = (w, r, now) => {
    for (let [i, count] of [[w.first[r], w.running[r]], [w.head[r], w.waiting[r]]]) {
      for (; count; count--, i = w.link[i]) w.latency[i] = Infinity;
    }
    if (w.running[r]) w.busy -= w.done[r] - now;
    w.waiting[r] = w.running[r] = w.open[r] = w.closed[r] = 0;
    w.next[r] = w.done[r] = w.close[r] = Infinity;
    w.told[r] = -Infinity;
  };

  const changes = (fleet) =>
    fleet.outages.flatMap(({ replica: r, from_s: from, to_s: to }) => [{ at: from, r, goes: true }, { at: to ?? Infinity, r, goes: false }])
      .filter(({ at }) => at < Infinity).sort((a, b) => a.at - b.at || a.goes - b.goes || a.r - b.r);

  /**
   * Latencies in seconds, in the order of the arrivals (seconds, ascending): Infinity where refused or lost.
   * `fleet` as `Fleet.as_json` writes it, and `seed` below 2³². Without autoscaling.
   */
  const simulate = (arrivals, fleet, seed = 1) => {
    const { service, replicas } = fleet, n = arrivals.length, leaves = 2 ** Math.ceil(Math.log2(replicas));
    const floats = () => new Float64Array(replicas).fill(Infinity), ints = () => new Int32Array(replicas);
    const perSize = (times) => Float64Array.from(times ?? service.mean_s.map(() => 0));
    const least = ROUTINGS.indexOf(fleet.routing) === LEAST;
    const takesAlong = fleet.batch_wait_s === 0 && ["opportunistic", "company"].includes(fleet.rule);
    const w = {
      arrivals, mean: Float64Array.from(service.mean_s),
      after: perSize(service.after_s), spread: Float64Array.from(service.spread.flat()),
      spreads: service.spread[0].length, spreadClass: Int32Array.from(service.spread_class),
      rule: RULES.indexOf(fleet.rule), routing: ROUTINGS.indexOf(fleet.routing),
      maxBatch: fleet.max_batch, wait: fleet.batch_wait_s, queue: fleet.queue, seed,
      latency: new Float64Array(n), link: new Int32Array(n), size: new Int32Array(fleet.rule === "awaiting" ? n : 0),
      waking: service.waking ?? { from_s: 0, full_s: 0, extra_s: 0 }, telling: perSize(service.telling_s), wake: takesAlong ? service.wake_s ?? 0 : 0, next: floats(), done: floats(), close: floats(), told: floats().fill(-Infinity), head: ints(), tail: ints(), waiting: ints(), running: ints(),
      first: ints(), open: ints(), opened: ints(), closed: ints(),
      batches: new Float64Array(service.mean_s.length), busy: 0, last: arrivals[n - 1], refused: 0, turn: 0, stamp: 0, stream: seeded(seed),
      events: new Float64Array(least ? 2 * leaves : 0).fill(Infinity), loads: new Float64Array(least ? 2 * leaves : 0).fill(Infinity),
    };
    let up = Array.from({ length: replicas }, (_, r) => r), routed = 0, lost = 0;
    if (least) for (const r of up) weigh(w, r, true);
    for (const { at, r, goes } of changes(fleet)) {
      let to = routed;
      while (to < n && arrivals[to] < at) to++;
      route(w, up, routed, to);
      settle(w, at);
      routed = to;
      if (goes) {
        lost += w.waiting[r] + w.running[r];
        fail(w, r, at);
      }
      up = goes ? up.filter((one) => one !== r) : [...up, r].sort((a, b) => a - b);
      if (least) {
        put(w.events, r, w.next[r]);
        weigh(w, r, !goes);
      }
    }
    route(w, up, routed, n);
    settle(w, Number.MAX_VALUE);
    const overhead = Float64Array.from(service.overhead_s), stream = seeded(seed + 1), mask = overhead.length - 1;
    for (let i = 0; i < n; i++) w.latency[i] += overhead[draw(stream) & mask] + service.answer_s;
    return { latency: w.latency, batches: w.batches, utilisation: w.busy / (replicas * (w.last - arrivals[0])), refused: w.refused, lost };
  };

  // what the page asks
  const WARM = 0.1, AFTER_LOSS = 0.49;
  const drawn = new Map();

  /** So many instants at a rate of one; `burstiness` is the shape of gamma's gaps, null an even spacing. */
  const unit = (count, seed, burstiness) => {
    const key = `${seed} ${burstiness}`, kept = drawn.get(key);
    if (kept && kept.length >= count) return kept.subarray(0, count);
    const stream = seeded(seed + 2), uniform = () => (draw(stream) + 0.5) / 2 ** 32;
    const shape = burstiness < 1 ? burstiness + 1 : burstiness, d = shape - 1 / 3, c = 1 / Math.sqrt(9 * d);
    const gamma = () => { // Marsaglia and Tsang
      for (;;) {
        const x = Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform()), v = (1 + c * x) ** 3;
        if (v > 0 && Math.log(uniform()) < x * x / 2 + d - d * v + d * Math.log(v)) return d * v;
      }
    };
    const gap = burstiness === null ? () => 1
      : burstiness === 1 ? () => -Math.log(uniform())
      : burstiness < 1 ? () => gamma() * uniform() ** (1 / burstiness) / burstiness
      : () => gamma() / burstiness;
    const found = new Float64Array(count);
    for (let i = 0, at = 0; i < count; i++) found[i] = at += gap();
    if (drawn.size > 8) drawn.clear();
    drawn.set(key, found);
    return found;
  };

  /** The value at `place` of those that are sorted; the values change their places. */
  const select = (values, place) => {
    for (let low = 0, high = values.length - 1; low < high;) {
      const pivot = values[(low + high) >> 1];
      let i = low, j = high;
      while (i <= j) {
        while (values[i] < pivot) i++;
        while (values[j] > pivot) j--;
        if (i > j) break;
        const kept = values[i];
        values[i++] = values[j];
        values[j--] = kept;
      }
      if (place <= j) high = j;
      else if (place >= i) low = i;
      else break;
    }
    return values[place];
  };

  /** One simulation at `rate` as `sizing.Reading` sees it, seconds; `lost` replicas fall half-way, and what follows counts. */
  const read = ({ fleet, rate, count, seed, burstiness, lost, slo, percentiles }) => {
    const n = lost ? 2 * count : count, at = unit(n, seed, burstiness), arrivals = new Float64Array(n);
    for (let i = 0; i < n; i++) arrivals[i] = at[i] / rate;
    const outages = Array.from({ length: lost }, (_, replica) => ({ replica, from_s: arrivals[n >> 1], to_s: null }));
    const found = simulate(arrivals, { ...fleet, outages }, seed);
    const warm = found.latency.subarray(Math.floor(n * (lost ? AFTER_LOSS : WARM))), all = warm.length;
    let within = 0, failed = 0, batches = 0, requests = 0;
    for (let i = 0; i < all; i++) {
      if (warm[i] <= slo.latency) within += 1;
      else if (warm[i] === Infinity) failed += 1;
    }
    found.batches.forEach((many, size) => { batches += many; requests += many * size; });
    const place = (percent) => Math.ceil((all - 1) * (percent / 100));
    const kept = within > place(slo.percentile) && failed / all <= slo.errors && within / all >= slo.goodput;
    return { kept, failed: failed / all, utilisation: found.utilisation, batch: requests / batches, at: percentiles.map((percent) => select(warm, place(percent))) };
  };

  return { simulate, read };
};
