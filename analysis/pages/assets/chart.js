"use strict";
// What all pages draw with: elements, numbers and times as `words` writes them, scales and ticks as `svg.py` has them.
const chart = (() => {
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
    if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
    const number = Number(value.toPrecision(12)), size = Math.abs(number);
    if (size < 1e-12) return "0";
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
  /** What a step asked for. */
  const load = ({ rate: rps, concurrency }) => (concurrency ? `${concurrency} under way` : rate(rps));

  // times
  const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];
  /** Between the ticks of an axis so long, of which there are to be `most`. */
  const timeStep = (seconds, most) => STEPS_S.find((step) => seconds / step <= most) ?? 86400 * Math.ceil(seconds / 86400 / most);
  /** Since the start, as 1:05 or 1:02:05. */
  const moment = (seconds) => {
    const [h, m, s] = [seconds / 3600, (seconds / 60) % 60, seconds % 60].map(Math.floor), two = (part) => String(part).padStart(2, "0");
    return h ? `${h}:${two(m)}:${two(s)}` : `${m}:${two(s)}`;
  };
  const duration = (seconds) => {
    const all = Math.round(seconds), hours = Math.floor(all / 3600), minutes = Math.floor(all / 60) % 60;
    return all < 120 ? `${all} s` : hours ? `${hours} h ${minutes} min` : `${minutes} min ${all % 60} s`;
  };

  // scales
  const scale = (low, high, log = false) =>
    Object.assign((value) => (log ? Math.log(Math.max(value, low) / low) / Math.log(high / low) : (value - low) / (high - low)),
      { low, high, log });
  const known = (values) => values.filter((value) => value > 0 && value < Infinity);
  const linear = (values) => scale(0, (Math.max(...known(values), 0) || 1) * 1.06);
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
  const tick = (value) => Number(value.toPrecision(10)).toLocaleString("en", { maximumFractionDigits: 10 });
  const rateTick = (value) => `${tick(value)}/s`;
  const latencyTick = (value) => (value < 1000 ? `${tick(value)}\u00a0ms` : `${tick(value / 1000)}\u00a0s`);
  /** Ticks with what is written at them. */
  const labels = (of, most, written = tick) => ticks(of, most).map((value) => [value, written(value)]);

  return { tag, svg, significant, unit, ms, rate, count, load, timeStep, moment, duration, scale, linear, fitting, ticks, tick,
    rateTick, latencyTick, labels };
})();
