// On a packet's page: the next one is the next of those that were selected in the queue.
(() => {
  "use strict";

  const order = JSON.parse(sessionStorage.getItem("picked") || "[]");
  const at = order.findIndex((address) => location.pathname.startsWith(address));
  if (at < 0) return;
  for (const [key, address] of [["next", order[at + 1]], ["prev", order[at - 1]]]) {
    if (!address) continue;
    document.querySelectorAll(`[data-key="${key}"]`).forEach((link) => { link.href = address; });
  }
})();
