// Tables: a heading sorts by its column, and a button copies the table as text with tabs, for a spreadsheet.
(() => {
  const { tag } = chart;

  // sorting
  const key = (row, column) => {
    const cell = row.cells[column], text = cell.textContent.trim().replaceAll("−", "-").replace(/,(?=\d{3})/g, "");
    if (cell.dataset.value !== undefined) return cell.dataset.value;
    return { "–": "", "∞": "Infinity" }[text] ?? (/^-?[\d.]+\D*$/.test(text) ? String(parseFloat(text)) : text);
  };
  const compare = (a, b) => {
    const [x, y] = [Number(a), Number(b)];
    return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b, "en", { numeric: true }) : x === y ? 0 : x < y ? -1 : 1;
  };
  const sort = (head) => {
    const body = head.closest("table").tBodies[0], column = head.cellIndex;
    const up = head.getAttribute("aria-sort") !== "ascending";
    for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const rows = [...body.rows].map((row) => [key(row, column), row]).sort(([a], [b]) => {
      if (a === "" || b === "") return (a === "") - (b === ""); // absent ones last
      return (up ? 1 : -1) * compare(a, b);
    });
    body.append(...rows.map(([, row]) => row));
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    for (const head of table.tHead.rows[table.tHead.rows.length - 1].cells) {
      if (!head.textContent) continue;
      let button = head.querySelector("button");
      if (!button) {
        button = tag("button", { type: "button" }, head.textContent);
        head.replaceChildren(button);
      }
      button.addEventListener("click", () => sort(head));
    }
  }

  // copying
  const lines = (table) =>
    [...table.rows].map((row) =>
      [...row.cells].flatMap((cell) => [cell.textContent.trim().replace(/\s+/g, " "), ...Array(cell.colSpan - 1).fill("")]).join("\t"));
  for (const box of document.querySelectorAll(".box")) {
    const table = box.querySelector("table"), said = tag("span", { role: "status" });
    const button = tag("button", { class: "copy", type: "button", "aria-label": `Copy the table: ${table.caption?.textContent ?? ""}` }, "Copy");
    button.addEventListener("click", async () => {
      const done = await copying.copy(lines(table).join("\n") + "\n", button);
      copying.say(said, done ? `${table.tBodies[0].rows.length} rows copied` : "Copying is not allowed here");
    });
    box.before(tag("div", { class: "copying" }, said, button));
  }
})();
