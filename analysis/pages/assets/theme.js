// Light or dark: as the system is, until the button says otherwise. A chart by itself has no button.
(() => {
  const button = document.querySelector(".theme"), root = document.documentElement;
  if (!button) return;
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
  const name = () => { button.textContent = dark() ? "Light" : "Dark"; };
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    name();
  });
  name();
})();
