// A table that is wider than the page scrolls: by keyboard too.
const focusable = () => {
  for (const wide of document.querySelectorAll(".md-typeset__scrollwrap")) {
    if (wide.scrollWidth > wide.clientWidth) {
      wide.tabIndex = 0;
      wide.setAttribute("role", "region");
      wide.setAttribute("aria-label", "Table");
    } else {
      for (const name of ["tabindex", "role", "aria-label"]) wide.removeAttribute(name);
    }
  }
};
addEventListener("load", focusable);
addEventListener("resize", focusable);
