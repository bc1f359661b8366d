// The diff: which files this reader has ticked as seen, remembered by the candidate's digest for as
// long as this browser tab lives. A help for reading, not a part of the decision.
(() => {
  "use strict";

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
