// Dialogs: [data-open-dialog="id"] opens, [data-close-dialog] closes. The safe button has autofocus.
// A dialog with [data-typed] keeps its way forward shut until exactly that text is typed.
(() => {
  "use strict";

  document.addEventListener("click", (event) => {
    const opener = event.target.closest("[data-open-dialog]");
    if (opener) {
      const dialog = document.getElementById(opener.dataset.openDialog);
      if (dialog && !dialog.open) {
        event.preventDefault();
        dialog.showModal();
      }
      return;
    }
    const closer = event.target.closest("[data-close-dialog]");
    if (closer) {
      event.preventDefault();
      closer.closest("dialog").close();
    }
  });

  // The button that opened it has the focus again, even where the page drew it anew meanwhile.
  document.addEventListener("close", (event) => {
    // Not there yet: the focus still is in the dialog that has gone.
    const at = document.activeElement;
    if (at !== document.body && !event.target.contains(at)) return;
    const opener = document.querySelector(`[data-open-dialog="${event.target.id}"]`);
    if (opener) opener.focus({ preventScroll: true });
  }, true);

  function check(dialog) {
    const typed = dialog.querySelector("[data-typed]");
    const forward = dialog.querySelector("[data-forward]");
    if (!typed || !forward) return;
    const same = typed.value.trim() === typed.dataset.typed;
    forward.setAttribute("aria-disabled", same ? "false" : "true");
  }

  document.querySelectorAll("dialog:has([data-typed])").forEach((dialog) => {
    check(dialog);
    dialog.addEventListener("input", () => check(dialog));
  });

  // A button that says aria-disabled does nothing, whoever presses it.
  document.addEventListener("click", (event) => {
    const button = event.target.closest('button[aria-disabled="true"]');
    if (button) {
      event.preventDefault();
      event.stopImmediatePropagation();
    }
  }, true);
})();
