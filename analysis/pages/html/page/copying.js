// Text that leaves the page: on its way to the clipboard, and as a word of a shell.
const copying = (() => {
  const byHand = (text, button) => {
    const area = chart.tag("textarea", { class: "unseen" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    button.focus();
    return done;
  };
  /** Whether it was allowed; `button` is what was pressed. */
  const copy = async (text, button) => {
    try {
      await navigator.clipboard.writeText(text); // absent on a page that came over plain HTTP, refused in some others
      return true;
    } catch {
      return byHand(text, button);
    }
  };
  /** Says for a while what became of it. */
  const say = (node, text) => {
    node.textContent = text;
    setTimeout(() => { node.textContent = ""; }, 4000);
  };
  const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? String(word) : `'${String(word).replaceAll("'", `'"'"'`)}'`);
  return { copy, say, quoted };
})();
