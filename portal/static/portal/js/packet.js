// The packet page: approving waits until everything is loaded, and what needs words gets them.
//
// Without this script the form still works; the server asks for the same things.
(() => {
  "use strict";

  const form = document.getElementById("decision-form");
  if (!form) return;
  const approve = form.querySelector('[data-answer="approve"]');
  const comment = form.querySelector("#comment");
  const said = form.querySelector("#needs-words");
  const waits = form.querySelector("[data-waits]");
  // A button that the server has closed stays closed.
  const closedByServer = approve && approve.getAttribute("aria-disabled") === "true";
  const loadedKey = `loaded:${form.dataset.digest}`;

  // The parts may be on another tab of the same packet: what was loaded there is remembered by
  // digest, for as long as this browser tab lives.
  function allLoaded() {
    if (!form.dataset.parts) return true;
    if (form.dataset.parts === "here" && !document.querySelector("[data-unloaded]")) {
      sessionStorage.setItem(loadedKey, "1");
    }
    return sessionStorage.getItem(loadedKey) === "1";
  }

  function gate() {
    if (!approve || closedByServer) return;
    const open = allLoaded();
    approve.setAttribute("aria-disabled", open ? "false" : "true");
    if (!waits) return;
    waits.hidden = open;
    if (open) return;
    const link = waits.querySelector("a");
    const count = waits.querySelector("[data-count]");
    const left = document.querySelectorAll("[data-unloaded]");
    if (form.dataset.parts === "here") {
      count.textContent = left.length === 1 ? "1 part is left, " : `${left.length} parts are left, `;
      link.href = `#${left[0].id}`;
      link.textContent = left[0].dataset.unloaded;
    } else {
      count.textContent = "";
      link.href = form.dataset.parts;
      link.textContent = "read the diff";
    }
  }

  function needWords(answer) {
    said.textContent = answer === "deny"
      ? form.dataset.deny
      : answer === "approve"
        ? "Choose an answer, or write one."
        : "Say what should change; it goes to the agent as its next input.";
    said.hidden = false;
    comment.setAttribute("aria-invalid", "true");
    comment.setAttribute("aria-describedby", "needs-words");
    const box = comment.getBoundingClientRect();
    comment.focus({ preventScroll: box.top >= 0 && box.bottom <= innerHeight });
  }

  function wordless(answer) {
    if (comment.value.trim()) return false;
    if (answer === "deny" || answer === "changes") return true;
    return Boolean(form.querySelector('[name="choice"]')) && !form.querySelector('[name="choice"]:checked');
  }

  form.addEventListener("submit", (event) => {
    const answer = event.submitter ? event.submitter.value : "";
    const dialog = document.getElementById("confirm");
    if (document.body.hasAttribute("data-offline")) {
      event.preventDefault();
      if (dialog) dialog.close();
      document.getElementById("offline").scrollIntoView({ block: "start" });
      return;
    }
    if (wordless(answer)) {
      event.preventDefault();
      if (dialog) dialog.close();
      needWords(answer);
      return;
    }
    // The second of two quick clicks is the same click.
    if (form.dataset.sent) { event.preventDefault(); return; }
    form.dataset.sent = "1";
  });

  // Where approving adds reach, the button asks first. The dialog's own button belongs to this form.
  if (approve && form.hasAttribute("data-confirm")) {
    approve.addEventListener("click", (event) => {
      const dialog = document.getElementById("confirm");
      if (dialog && !dialog.open) {
        event.preventDefault();
        if (wordless("approve")) needWords("approve");
        else dialog.showModal();
      }
    });
  }

  comment.addEventListener("input", () => {
    if (!comment.value.trim()) return;
    comment.removeAttribute("aria-invalid");
    said.hidden = true;
  });
  // Ctrl-Enter after `r` or `d` sends the answer that was meant.
  comment.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || event.repeat) return;
    const button = form.querySelector(`[data-answer="${comment.dataset.meant || ""}"]`);
    if (button) form.requestSubmit(button);
  });

  // A key that is held down presses its button once.
  form.addEventListener("keydown", (event) => {
    if (event.repeat && (event.key === "Enter" || event.key === " ") && event.target.matches("button")) event.preventDefault();
  });

  // Somebody else's answer can take the form away while one writes in it. The focus stays with this
  // packet's decision, where the rest of the word presses no key, and nothing is asked any more.
  let within = false;
  const dialogNow = () => document.getElementById("confirm");
  document.body.addEventListener("htmx:oobBeforeSwap", (event) => {
    if (event.detail.target.id !== "decide") return;
    const at = document.activeElement;
    within = form.contains(at) || Boolean(at.closest("#confirm"));
  });
  document.body.addEventListener("htmx:afterSettle", () => {
    if (form.isConnected) return;
    const dialog = dialogNow();
    if (dialog && dialog.open) dialog.close();
    if (!within) return;
    within = false;
    const over = document.getElementById("decide");
    over.setAttribute("data-quiet", "");
    over.addEventListener("blur", () => over.removeAttribute("data-quiet"), { once: true });
    over.focus({ preventScroll: true });
  });

  // What was typed survives a reload that was needed because the portal was away.
  const draft = `comment:${form.dataset.packet}`;
  if (!comment.value) comment.value = sessionStorage.getItem(draft) || "";
  comment.addEventListener("input", () => sessionStorage.setItem(draft, comment.value));
  form.addEventListener("submit", (event) => {
    if (!event.defaultPrevented) sessionStorage.removeItem(draft);
  });

  window.addEventListener("pageshow", (event) => { if (event.persisted) delete form.dataset.sent; });
  document.body.addEventListener("htmx:afterSettle", gate);
  gate();
})();
