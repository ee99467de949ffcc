// Buttons of which one is pressed, each showing one of several figures; without this the one that was chosen stays.
(() => {
  for (const row of document.querySelectorAll(".scripted")) {
    row.hidden = false;
    const group = row.parentElement, buttons = [...row.querySelectorAll("[data-choose]")];
    const choose = (button) => {
      for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
      for (const part of group.querySelectorAll("[data-choice]")) part.hidden = part.dataset.choice !== button.dataset.choose;
    };
    row.addEventListener("click", ({ target }) => { if (buttons.includes(target)) choose(target); });
    row.addEventListener("keydown", (event) => {
      const to = buttons.indexOf(event.target) + ({ ArrowRight: 1, ArrowLeft: -1 }[event.key] ?? 0);
      if (event.target === buttons[to] || !buttons[to]) return;
      event.preventDefault();
      buttons[to].focus();
      choose(buttons[to]);
    });
  }
})();
