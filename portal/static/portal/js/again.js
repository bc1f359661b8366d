// A packet's page whose form is another one by now is drawn anew: an approval was undone, or a right
// to decide was handed over, came to an end, or changed. Not while somebody is at the form; and a
// comment survives it.
(() => {
  "use strict";

  function busy(bar) {
    if (document.querySelector("dialog[open]") || bar.contains(document.activeElement)) return true;
    const name = bar.querySelector("#for");
    return Boolean(bar.querySelector('[name="choice"]:checked') || (name && name.selectedIndex > 0));
  }

  function compare() {
    const bar = document.getElementById("decide"), now = document.getElementById("standing");
    if (!bar || !now || !now.dataset.form || now.dataset.form === bar.dataset.form || busy(bar)) return;
    // How long it was open and what was on screen goes on.
    sessionStorage.setItem("redrawn", now.dataset.page);
    // The page that said why an answer was not taken would send that answer again.
    if (document.getElementById("refusal")) location.assign(now.dataset.page);
    else location.reload();
  }

  document.body.addEventListener("htmx:afterSettle", compare);
  document.addEventListener("focusout", () => setTimeout(compare));
})();
