// What the page says of an answer, as `tailrate.analysis.planning.plan.plan_text` and `tailrate.analysis.planning.plan.plan` say it; `made` is what the page embeds.
const wording = (made) => {
  const { significant, ms, rate, count } = chart;

  const percent = (share) => (share === null || !Number.isFinite(share) ? "–" : `${significant(100 * share, 2)} %`);
  const money = (value) => (value === null ? "–" : `${significant(value)} ${made.currency}`.trim());
  const span = ({ low, high }) => (!Number.isFinite(low ?? Infinity) ? "–" : `${significant(1e3 * low)}–${significant(1e3 * high)}`);
  const tailName = ({ slo }) => `P${slo.percentile}`;
  const counted = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : "s"}`;
  const devices = (found) => counted(found.gpus, found.asked.variant.cpu ? "machine" : "GPU");
  const figures = (found) => {
    const { asked, bill } = found;
    if (found.replicas === null) return {};
    return {
      replicas: count(found.replicas), gpus: count(found.gpus), tail: ms(1e3 * found.tail), between: span(found),
      after_loss: found.lost === null ? "–" : ms(1e3 * found.lost), busy: found.utilisation > 0.99 ? "> 99 %" : percent(found.utilisation), batch: significant(found.batch),
      knee: rate(found.knee), headroom: found.knee === null ? "–" : percent(found.knee / asked.rate - 1), hour: money(bill.hour), million: money(bill.million),
      joules: bill.joules === null ? "–" : `${significant(bill.joules)} J`, co2: bill.co2 === null ? "–" : `${significant(bill.co2)} g`,
      percentile: tailName(asked), n_plus: count(asked.nPlus),
    };
  };
  const conclusion = (found) => {
    const { asked, replicas, bill } = found, { endpoint } = asked.variant;
    const wanted = `${significant(asked.rate)} requests/s${made.peak === 1 ? "" : " at the peak"} at ${tailName(asked)}\u00a0≤\u00a0${significant(asked.limitMs)}\u00a0ms`;
    if (replicas === null) return `No number of replicas of ${endpoint} holds ${wanted}: a request that is alone takes ${ms(1e3 * found.alone.at[1])} at ${tailName(asked)}.`;
    const fleet = `${counted(replicas, "replica")} of ${endpoint} on ${devices(found)}`, one = replicas === 1;
    const between = span(found), tail = `${tailName(asked)} ${ms(1e3 * found.tail)}${between === "–" ? "" : ` (${between})`}`;
    const cost = bill.hour === null ? "" : `, for ${money(bill.hour)} an hour, ${money(bill.million)} per million requests`;
    if (!found.kept) return `${fleet} ${one ? "does" : "do"} not hold ${wanted}: ${found.tail === Infinity ? "too many requests get no answer" : tail}.`;
    const loss = asked.nPlus ? `, ${found.survives ? "also" : "but not"} with ${count(asked.nPlus)} of them lost` : "";
    const knee = found.knee === null ? "" : `, the knee ${percent(found.knee / asked.rate - 1)} higher`;
    return `${fleet} ${one ? "holds" : "hold"} ${wanted}${loss}: ${tail}${knee}${cost}.`;
  };
  const warnings = (found) => {
    const { asked, replicas } = found, { error, highest_rps: highest, endpoint } = asked.variant;
    if (replicas === null) return [];
    const list = [];
    if (error === null) list.push(`The model of ${endpoint} was held against no rate that it had not seen, so its error is unknown.`);
    else if (error > made.gate) list.push(`The model of ${endpoint} was ${percent(error)} off in the rate at the objective on rates that it had not seen; ${percent(made.gate)} is the most at which a plan can be trusted.`);
    if (asked.rate / replicas > highest * (1 + 1e-9)) {
      const enough = Math.ceil(asked.rate / highest - 1e-9) + asked.nPlus;
      list.push(`Each replica is to take ${rate(asked.rate / replicas)}, and none was measured above ${rate(highest)}: measure up to there, or take ${count(enough)} replicas.`);
    }
    return list;
  };

  return { percent, money, tailName, counted, figures, conclusion, warnings };
};
