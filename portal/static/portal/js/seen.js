// Whoever has a packet's page before their eyes has seen what it tells when it looks again; a page in
// the background tells nobody.
document.body.addEventListener("htmx:configRequest", (event) => {
  if (!document.hidden && event.detail.elt.hasAttribute("data-live")) event.detail.parameters.seen = "1";
});
