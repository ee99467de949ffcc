// On paper nothing can be opened.
addEventListener("beforeprint", () => { for (const found of document.querySelectorAll("details")) found.open = true; });
