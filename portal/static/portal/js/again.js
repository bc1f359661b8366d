// A packet that was held and is open again: the page that said so has no form to lose words from,
// so it is drawn anew, with one.
document.body.addEventListener("htmx:afterSettle", () => {
  const held = document.querySelector("#decide[data-held]");
  if (held && document.querySelector("#packet-outcome [data-open-again]")) location.reload();
});
