// The run page: a burst of events is shown newest first, each once, and the reader's place is kept.
(() => {
  "use strict";

  const list = document.getElementById("events");
  if (!list) return;

  // A row that came twice (two looks at the same moment) is shown once.
  document.body.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target !== list) return;
    const seen = new Set();
    for (const row of [...list.children]) {
      if (seen.has(row.id)) row.remove();
      else seen.add(row.id);
    }
    // More may have come than one answer holds: ask until nothing is left.
    const added = (event.detail.xhr.responseText.match(/<li /g) || []).length;
    if (added >= 200) document.body.dispatchEvent(new CustomEvent("look"));
  });
})();
