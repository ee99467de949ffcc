// what the theme leaves out for those who see nothing or use no mouse, on each page that it shows
document$.subscribe(() => {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  for (const wrap of document.querySelectorAll(".md-typeset__scrollwrap"))
    if (wrap.scrollWidth > wrap.clientWidth) wrap.tabIndex = 0;
});
