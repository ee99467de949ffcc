// Which runs are shown and which two are compared; the address says the latter, so it can be linked.
(() => {
  const all = (selector) => [...document.querySelectorAll(selector)];
  const data = JSON.parse(document.querySelector("#embedded script").textContent);
  const form = document.querySelector(".filters"), section = document.querySelector("#compare");
  const rows = all(".runs tbody tr").map((row) => {
    const run = data.runs[row.dataset.run];
    return { row, run, box: row.querySelector("input"), text: `${row.textContent} ${run.said} ${run.endpoints.join(" ")}`.toLowerCase() };
  });

  // what is reached by keyboard comes into view before its values are placed beside it
  document.addEventListener("focus", ({ target }) => {
    if (target.dataset?.tip) target.scrollIntoView({ block: "nearest", behavior: "instant" });
  }, true);

  // filters
  const filter = () => {
    const { text, scenario, endpoint, state } = form.elements;
    const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const { row, run, text: own } of rows) {
      row.hidden = !(words.every((word) => own.includes(word)) && (!scenario.value || run.scenario === scenario.value)
        && (!state.value || run.state === state.value) && (!endpoint.value || run.endpoints.includes(endpoint.value)));
      shown += !row.hidden;
    }
    form.querySelector(".count").textContent = shown === rows.length ? "" : `${shown} of ${rows.length} shown`;
  };
  form.addEventListener("input", filter);

  // the choice: at most two, so a third takes the place of the first
  let chosen = [];
  const choose = (names) => {
    chosen = names.slice(-2);
    for (const { row, run, box } of rows) {
      if (box) box.checked = chosen.includes(run.name);
      row.cells[0].dataset.value = Number(!chosen.includes(run.name)); // sorting brings them to the top
      row.classList.toggle("chosen", chosen.includes(run.name));
    }
    const button = form.querySelector(".go");
    button.disabled = chosen.length < 2;
    button.textContent = ["Compare: choose two", "Compare: choose one more", "Compare the two"][chosen.length];
  };
  for (const { run, box } of rows) {
    box?.addEventListener("change", () => choose([...chosen.filter((name) => name !== run.name), ...(box.checked ? [run.name] : [])]));
  }
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    // rows come newest first, and the older one is the base
    const [b, a] = data.runs.map((run) => run.name).filter((name) => chosen.includes(name));
    if (b && a) location.hash = `compare=${encodeURIComponent(a)},${encodeURIComponent(b)}`;
  });

  // the address
  const decoded = (text) => { try { return decodeURIComponent(text); } catch { return text; } };
  const follow = () => {
    const asked = location.hash.match(/^#compare=([^,]*),([^,]*)$/);
    for (const other of all("main > section")) other.hidden = (other === section) !== Boolean(asked);
    tip.hide();
    section.replaceChildren();
    if (!asked) return;
    const names = asked.slice(1).map(decoded);
    const found = names.map((name) => data.runs.find((run) => run.name === name && run.levels.length));
    if (found[0] && found[1]) {
      choose(names);
      section.append(...comparison.parts(data, ...found));
    } else {
      const missing = names.find((_, k) => !found[k]);
      section.append(chart.tag("a", { href: "#runs" }, "← all runs"), chart.tag("h2", { tabindex: -1 }, `No run ${missing} with figures is listed here`));
    }
    scrollTo(0, 0);
    section.querySelector("h2").focus({ preventScroll: true });
  };
  addEventListener("hashchange", follow);
  choose([]);
  filter();
  follow();
})();
