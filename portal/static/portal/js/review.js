// The diff: which files this reader has ticked as seen, remembered by the candidate's digest for as
// long as this browser tab lives. A help for reading, not a part of the decision.
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

  const meter = document.querySelector("[data-seen]");
  if (!meter) return;
  const key = `seen:${meter.dataset.seen}`;
  const read = () => new Set(JSON.parse(sessionStorage.getItem(key) || "[]"));

  function draw() {
    const seen = read();
    document.querySelectorAll("[data-seen-box]").forEach((label) => {
      label.hidden = false;
      const box = label.querySelector("input");
      box.checked = seen.has(box.dataset.file);
    });
    const bar = meter.querySelector("progress");
    bar.value = seen.size;
    meter.querySelector("[data-seen-words]").textContent = `${seen.size} of ${bar.max} files seen`;
    meter.hidden = false;
  }

  document.addEventListener("change", (event) => {
    if (!event.target.matches("[data-seen-box] input")) return;
    const seen = read();
    if (event.target.checked) seen.add(event.target.dataset.file);
    else seen.delete(event.target.dataset.file);
    sessionStorage.setItem(key, JSON.stringify([...seen]));
    draw();
  });
  document.body.addEventListener("htmx:afterSettle", draw);
  draw();
})();
