// Behaviour of the live page: asks once a second what has changed, and draws what is known.
// Every text that came from elsewhere goes into the page as text, never as markup.
(() => {
  const { tag, significant, ms, rate, load, moment, duration } = chart;
  const { colour, QUANTITIES } = lanes;
  const find = (id) => document.getElementById(id);
  const show = (node, on) => { node.hidden = !on; };
  const write = (node, text) => { if (node.textContent !== text) node.textContent = text; };

  // ---- words

  /** A percentile that is null although there are `n` arrivals is infinite. */
  const percentile = (value, n) => ms(value === null && n ? Infinity : value);
  const STATUS = { waiting: "waiting for a start", running: "● running", complete: "✓ complete", failed: "✕ failed" };

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
    const rates = steps.map((step) => `${step.endpoint} at ${load(step)}`).join(", ");
    const where = soak && steps.length ? `chapter ${soak.chapter} of ${soak.of}, ${rates}` : steps.map((step) => `step ${step.index + 1}${of ? ` of ${of}` : ""}, ${step.endpoint} at ${load(step)}`).join("; ");
    if (status === "waiting") return ["No test has been started.", "Start one on Locust's page; this page then shows it."];
    if (status === "failed") return [doing || "The run failed.", ""];
    if (status === "complete") return [`Complete after ${duration(elapsed)}.`, ""];
    if (status === "aborted") return [facts.run ? `Stopped after ${duration(elapsed)}.` : "Stopped before anything was sent.", ""];
    const left = steps.filter((step) => step.left_s !== null).map((step) => step.left_s);
    const parts = left.length ? [`${duration(Math.max(...left))} left in this ${soak ? "chapter" : "step"}`] : [];
    if (state.left_s !== null) parts.push(`${duration(state.left_s)} left${soak ? ` of ${duration(soak.total_s)}` : " in all"}`);
    if (soak && soak.used_bytes !== null) parts.push(`${significant(soak.used_bytes / 1e6)} MB on disk, ${significant(soak.free_bytes / 1e9)} GB free`);
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
  const some = (count, text) => [text ?? significant(count), count ? "bad" : ""];

  const tables = () => {
    const streams = state.endpoints.some((row) => typeof row.tokens_rps === "number");
    const variants = state.endpoints.map((row) => {
      const name = [row.endpoint, colour(row.endpoint)];
      if (row.step === null) return ["past", [name, "not yet", ...Array(streams ? 12 : 10).fill("–")]];
      const failures = Object.entries(row.failed), failed = failures.reduce((sum, [, count]) => sum + count, 0);
      const why = failures.map(([status, count]) => `${status}: ${significant(count)}`).join(", ");
      return [row.running ? "" : "past", [
        name, `${row.step + 1}${row.running ? "" : ", over"}`, load(row), rate(row.offered_rps), rate(row.achieved_rps), percentile(row.p50_ms, row.n),
        percentile(row.p99_ms, row.n), ...(streams ? [percentile(row.ttft_p99_ms, row.tokens_rps === null ? 0 : row.n), significant(row.tokens_rps)] : []), row.running ? significant(row.in_flight) : "–", ms(row.late_p99_ms), some(row.late), some(row.dropped),
        some(failed, failed ? `${significant(failed)} (${why})` : "0")]];
    });
    const figures = ["achieved", "P50", "P99"];
    fill(find("variants"), ["variant", "step", "asked", "offered", ...figures, ...(streams ? ["TTFT, P99", "tokens/s"] : []), "unanswered", "late, P99", "late", "dropped", "failed"], variants);

    const kept = names.devices.filter((name) => state.devices.some((device) => device[name] !== null));
    const devices = state.devices.map((device) => [device.stale ? "stale" : "", [
      device.name, ...kept.map((name) => (device[name] === null ? "–" : QUANTITIES[name][1](device[name]))),
    ]]);
    fill(find("devices"), ["device", ...kept.map((name) => QUANTITIES[name][0].split(",")[0])], devices);

    const over = events.filter((event) => event.event === "step_end").slice(-200).reverse().map((event) => ["", [
      [event.endpoint, colour(event.endpoint)], `${event.step + 1}`, load(event), rate(event.achieved_rps), percentile(event.p50_ms, 1),
      percentile(event.p99_ms, 1), ms(event.late_p99_ms), some(event.errors)]]);
    fill(find("steps"), ["variant", "step", "asked", ...figures, "late, P99", "errors"], over);
  };

  const list = (node, items) => node.replaceChildren(...items.map((parts) => tag("li", {}, parts)));

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
      find("making").replaceChildren(`${why}Or in a shell: `, tag("code", {}, report.command));
    }

    const warned = events.filter((event) => event.warning).slice(-50).reverse();
    show(find("doubts"), warned.length + state.doubts.length > 0);
    list(find("now-doubts"), state.doubts.map((doubt) => [doubt]));
    list(find("past-doubts"), warned.map((event) => [tag("b", {}, moment(Math.max(0, Math.round(event.t)))), event.warning]));
    // read out when something else begins, not each second
    const now = [`${STATUS[status] || status}: ${state.steps.length || status !== "running" ? first : ""}`, warned.length ? warned[0].warning : ""].join(" ");
    if (now !== spoken) write(find("spoken"), (spoken = now));

    show(find("time"), points.length > 0);
    lanes.show({ points, events, state, names, column });
    tables();
  };

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
