// The diff: the list of files, filtered, and which of them this reader has ticked as seen. A help for
// reading, not a part of the decision.
(() => {
  "use strict";

  const filter = document.getElementById("file-filter");
  if (filter) {
    // Only the list is filtered: what is under review stays on the page.
    const told = document.querySelector("[data-filtered]");
    filter.hidden = false;
    filter.addEventListener("input", () => {
      const wanted = filter.value.trim().toLowerCase();
      const links = [...document.querySelectorAll("[data-tree]")];
      for (const link of links) link.parentElement.hidden = !link.dataset.path.toLowerCase().includes(wanted);
      for (const folder of [...document.querySelectorAll(".tree details")].reverse()) {
        folder.parentElement.hidden = !folder.querySelector("li:not([hidden]) > a");
      }
      const left = links.filter((link) => !link.parentElement.hidden).length;
      told.hidden = !wanted;
      told.textContent = `${left} of ${links.length} files have “${filter.value.trim()}” in their path.`;
    });
  }

  // What was ticked is the portal's to remember; the list of files says so at once.
  const linkOf = (box) => document.querySelector(`[data-tree="${box.dataset.seenFile}"]`);
  const draw = (box) => linkOf(box)?.classList.toggle("is-seen", box.checked);
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-seen-file]")) draw(event.target);
  });
  // Not heard is not remembered.
  for (const lost of ["htmx:responseError", "htmx:sendError"]) {
    document.body.addEventListener(lost, (event) => {
      const box = event.detail.elt;
      if (!box.matches("[data-seen-file]")) return;
      box.checked = !box.checked;
      draw(box);
    });
  }
})();
