// A part of the packet's page that comes back as it was is left alone: to draw it anew would take
// the focus, a selection and half-written words away with it.
(() => {
  "use strict";

  const drawn = new Map();

  // Without what differs each time, or is kept true here: clocks, and the form's own secret.
  function plain(part) {
    const copy = part.cloneNode(true);
    copy.removeAttribute("hx-swap-oob");
    copy.querySelectorAll("[data-until], time").forEach((clock) => {
      clock.replaceChildren();
      clock.removeAttribute("class");
    });
    copy.querySelectorAll('[name="csrfmiddlewaretoken"]').forEach((field) => field.removeAttribute("value"));
    return copy.outerHTML;
  }

  document.body.addEventListener("htmx:oobBeforeSwap", (event) => {
    const { target, fragment } = event.detail;
    const part = fragment.firstElementChild;
    if (!target.id || !part || part.id !== target.id) return;
    const now = plain(part);
    if ((drawn.get(target.id) ?? plain(target)) === now) event.detail.shouldSwap = false;
    drawn.set(target.id, now);
  });
})();
