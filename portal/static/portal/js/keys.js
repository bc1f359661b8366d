// Single keys for a list of rows and for an open packet.
//
// The mark belongs to a packet's id, never to a row's number: a row that arrives or leaves cannot
// move what a key acts on. Keys do nothing while writing, behind a dialog or menu, with a modifier,
// or when they repeat because they are held down.
(() => {
  "use strict";

  const list = () => document.querySelector("[data-rows]");
  const rows = () => [...document.querySelectorAll("[data-rows] [data-row]")];
  let current = null;

  function mark(row, focus) {
    rows().forEach((other) => other.toggleAttribute("aria-current", false));
    if (!row) return;
    current = row.dataset.row;
    row.setAttribute("aria-current", "true");
    if (focus) {
      const link = row.querySelector(".row-link");
      link.focus();
      row.scrollIntoView({ block: "nearest" });
    }
  }

  const marked = () => rows().find((row) => row.dataset.row === current) || null;

  function move(step) {
    if (!list()) return follow(step > 0 ? "next" : "prev");
    const all = rows();
    if (!all.length) return false;
    const at = all.indexOf(marked());
    const next = at < 0 ? (step > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + step));
    mark(all[next], true);
    return true;
  }

  function follow(rel) {
    const link = document.querySelector(`[data-key="${rel}"]`);
    if (!link) return false;
    link.click();
    return true;
  }

  // To the next or the previous of these below or above the reading line, under sticky heads.
  const LINE = 96;
  function walk(selector, step) {
    const found = [...document.querySelectorAll(selector)];
    const top = (each) => each.getBoundingClientRect().top - LINE;
    const next = step > 0 ? found.find((each) => top(each) > 1) : found.reverse().find((each) => top(each) < -1);
    if (next) scrollBy({ top: top(next), behavior: "instant" });
    return found.length > 0;
  }

  function openMarked(part) {
    const row = marked();
    if (!row) return false;
    const link = row.querySelector(".row-link");
    location.href = part ? `${link.href}#${part}` : link.href;
    return true;
  }

  // What is in sight takes the focus without moving the page: the decision bar would scroll it to
  // its end, away from what is being read.
  function focusOn(target) {
    const box = target.getBoundingClientRect();
    target.focus({ preventScroll: box.top >= 0 && box.bottom <= innerHeight });
  }

  function press(selector) {
    const target = document.querySelector(selector);
    if (target) focusOn(target);
    return target || false;
  }

  // Approving by key never happens in one stroke: it opens the page's own question.
  function approve() {
    if (list()) return openMarked("decide");
    const button = document.querySelector('[data-answer="approve"]');
    if (!button) return false;
    focusOn(button);
    if (button.getAttribute("aria-disabled") !== "true") {
      const dialog = document.getElementById("confirm");
      if (dialog && !dialog.open) dialog.showModal();
    }
    return true;
  }

  function write(answer) {
    if (list()) return openMarked("decide");
    const comment = press("#comment");
    if (comment && answer) comment.dataset.meant = answer;
    return Boolean(comment);
  }

  const actions = {
    j: () => move(1),
    k: () => move(-1),
    o: () => (list() ? openMarked("") : false),
    x: () => {
      const tick = marked() && marked().querySelector('input[type="checkbox"]');
      if (!tick) return false;
      tick.click();
      return true;
    },
    b: () => {
      const button = document.querySelector("[data-bulk]:not([hidden]) [data-together]");
      if (!button) return false;
      button.click();
      return true;
    },
    a: approve,
    r: () => write("changes"),
    d: () => write("deny"),
    c: () => write(""),
    e: () => (list() ? false : follow("edit")),
    s: () => follow("view"),
    w: () => follow("blanks"),
    n: () => walk(".diff tr.hunk, .diff tr:is(.add, .rem):not(:is(.add, .rem) + tr)", 1),
    p: () => walk(".diff tr.hunk, .diff tr:is(.add, .rem):not(:is(.add, .rem) + tr)", -1),
    v: () => {
      const at = [...document.querySelectorAll("article.file")].findLast((each) => each.getBoundingClientRect().top <= LINE + 1);
      const box = (at || document).querySelector("[data-seen-file]");
      if (box) box.click();
      return Boolean(box);
    },
    "]": () => walk("article.file", 1),
    "[": () => walk("article.file", -1),
    "/": () => Boolean(press('input[type="search"]')),
    "?": () => {
      document.getElementById("keys").showModal();
      return true;
    },
  };

  // Whoever was writing when the form went away still types: that is no key until they look up.
  function busy(target) {
    return (
      target.closest("[data-quiet]") ||
      target.closest('input:not([type="checkbox"], [type="radio"]), textarea, select, [contenteditable]') ||
      document.querySelector("dialog[open], [popover]:popover-open")
    );
  }

  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.repeat || event.isComposing) return;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (document.body.dataset.keys === "off" || busy(event.target)) return;
    const action = Object.hasOwn(actions, event.key) ? actions[event.key] : null;
    if (action && action()) event.preventDefault();
  });

  // Leaving the comment field by Escape gives the keys back.
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && event.target.matches("textarea, input[type='search'], [data-quiet]")) event.target.blur();
  });

  document.addEventListener("focusin", (event) => {
    const row = event.target.closest("[data-rows] [data-row]");
    if (row) mark(row, false);
  });

  // A part of the list has been drawn anew: the mark and the focus go back to their packet.
  document.body.addEventListener("htmx:afterSettle", () => {
    if (!current || !list()) return;
    const row = marked();
    if (!row) return;
    const lost = document.activeElement === document.body;
    mark(row, lost);
  });
})();
