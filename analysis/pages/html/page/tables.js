"use strict";
// Tables: a heading sorts by its column, and a button copies the table as text with tabs, for a spreadsheet.
(() => {
  const make = (name, className, text) => Object.assign(document.createElement(name), { className, textContent: text });

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
        button = make("button", "", head.textContent);
        button.type = "button";
        head.replaceChildren(button);
      }
      button.addEventListener("click", () => sort(head));
    }
  }

  // copying
  const lines = (table) =>
    [...table.rows].map((row) =>
      [...row.cells].flatMap((cell) => [cell.textContent.trim().replace(/\s+/g, " "), ...Array(cell.colSpan - 1).fill("")]).join("\t"));
  const copyByHand = (text) => {
    const area = make("textarea", "unseen", "");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  };
  const copy = async (text) => {
    try {
      await navigator.clipboard.writeText(text); // absent on a page that came over plain HTTP, refused in some others
      return true;
    } catch {
      return copyByHand(text);
    }
  };
  for (const box of document.querySelectorAll(".box")) {
    const table = box.querySelector("table"), row = make("div", "copying", "");
    const said = row.appendChild(make("span", "", "")), button = row.appendChild(make("button", "copy", "Copy"));
    said.setAttribute("role", "status");
    button.type = "button";
    button.setAttribute("aria-label", `Copy the table: ${table.caption?.textContent ?? ""}`);
    button.addEventListener("click", async () => {
      const done = await copy(lines(table).join("\n") + "\n");
      button.focus();
      said.textContent = done ? `${table.tBodies[0].rows.length} rows copied` : "Copying is not allowed here";
      setTimeout(() => { said.textContent = ""; }, 4000);
    });
    box.before(row);
  }
})();
