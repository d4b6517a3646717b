"use strict";
// Sorts tables by their headers, makes scrolling parts reachable by keyboard, and opens all folded parts for print. The page also works without it.
(() => {
  const compare = (a, b) => {
    if (a === "" || b === "") return a === b ? 0 : a === "" ? 1 : -1;
    const [x, y] = [Number(a), Number(b)];
    return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y;
  };

  // The first click sorts numbers largest first and text from A, the second reverses this order, the third restores the original order.
  const sortBy = (table, header, place, rows) => {
    const first = header.classList.contains("left") ? "ascending" : "descending";
    const second = first === "ascending" ? "descending" : "ascending";
    const now = header.getAttribute("aria-sort");
    const next = now === null ? first : now === first ? second : null;
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    const key = (row) => row.cells[place].dataset.key;
    const order = [...rows];
    if (next) {
      header.setAttribute("aria-sort", next);
      const sign = next === "ascending" ? 1 : -1;
      order.sort((a, b) => {
        const [x, y] = [key(a), key(b)];
        return x === "" || y === "" ? compare(x, y) : sign * compare(x, y); // empty cells stay last
      });
    }
    table.tBodies[0].append(...order);
  };

  for (const table of document.querySelectorAll("table.sortable")) {
    const rows = [...table.tBodies[0].rows];
    [...table.tHead.rows[0].cells].forEach((header, place) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...header.childNodes);
      header.replaceChildren(button);
      button.addEventListener("click", () => sortBy(table, header, place, rows));
    });
  }

  const reachable = () => {
    for (const box of document.querySelectorAll(".scroll")) {
      if (box.scrollWidth > box.clientWidth) {
        const named = box.querySelector("caption, [aria-label]");
        box.tabIndex = 0;
        box.setAttribute("role", "group");
        box.setAttribute("aria-label", (named && (named.getAttribute("aria-label") || named.textContent)) || "text");
      } else {
        for (const name of ["tabindex", "role", "aria-label"]) box.removeAttribute(name);
      }
    }
  };
  reachable();
  window.addEventListener("resize", reachable);
  document.addEventListener("toggle", reachable, true);

  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const one of opened) one.open = true;
  });
  window.addEventListener("afterprint", () => {
    for (const one of opened) one.open = false;
  });
})();
