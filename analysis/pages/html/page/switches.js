// Buttons of a legend: each shows or hides the marks of its series, wherever in `root` they are.
const switches = (root) => {
  const all = (selector) => [...root.querySelectorAll(selector)];
  for (const button of all("[data-switch]")) {
    button.addEventListener("click", () => {
      const series = button.dataset.switch, on = button.getAttribute("aria-pressed") === "false";
      for (const mark of all(`[data-series="${series}"]`)) mark.classList.toggle("off", !on);
      for (const same of all(`[data-switch="${series}"]`)) same.setAttribute("aria-pressed", String(on));
    });
  }
  /** The series that are not shown. */
  return () => new Set(all('[data-switch][aria-pressed="false"]').map((button) => Number(button.dataset.switch)));
};
const switchedOff = switches(document);
