// Counts what came on screen while a packet was read, for the person and for the decision.
//
// Only this page can know it, and it proves nothing: the portal keeps it as the page's own words.
// What was read on another part of the same packet is remembered by digest, as long as this browser
// tab lives; and whoever goes from part to part goes on with the view they began with.
(() => {
  "use strict";

  const form = document.getElementById("decision-form");
  if (!form) return;
  const claims = form.querySelector('[name="claims"]');
  const line = form.querySelector("[data-attention]");
  const key = `read:${form.dataset.digest}`;
  const LONG_ENOUGH = 400;
  const stored = JSON.parse(sessionStorage.getItem(key) || "{}");
  const view = form.querySelector('[name="view"]');
  const here = `/packets/${form.dataset.packet}/`;
  const redrawn = (sessionStorage.getItem("redrawn") || "").endsWith(here);
  sessionStorage.removeItem("redrawn");
  const goesOn = Boolean(stored.view) && (redrawn || document.referrer.includes(here));
  if (goesOn) view.value = stored.view;
  const began = goesOn ? stored.began : Date.now();
  const seen = new Set(stored.seen || []);
  let of = stored.of || 0, whole = Boolean(stored.whole);
  const sections = new Set(), expanded = new Set();
  let visible = goesOn ? stored.visible : 0, since = document.hidden ? 0 : Date.now();
  const shown = () => Math.round(visible + (since ? Date.now() - since : 0));

  function keep() {
    const now = { seen: [...seen], of, whole, view: view.value, began, visible: shown() };
    sessionStorage.setItem(key, JSON.stringify(now));
  }

  // A hunk is named by its file and its number in it, whichever way the diff is drawn.
  const named = new WeakMap(), waiting = new Map();
  const watcher = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      clearTimeout(waiting.get(target));
      waiting.delete(target);
      if (!isIntersecting || document.hidden) continue;
      waiting.set(target, setTimeout(() => {
        const [set, name] = named.get(target);
        set.add(name);
        watcher.unobserve(target);
        if (set === seen) keep();
      }, LONG_ENOUGH));
    }
  });

  function watch(target, set, name) {
    if (named.has(target)) return;
    named.set(target, [set, name]);
    if (!set.has(name)) watcher.observe(target);
  }

  const parts = () => [...document.querySelectorAll("#main .sheet")];

  function look() {
    let count = 0;
    document.querySelectorAll("article.file").forEach((file) => {
      file.querySelectorAll("tr[data-hunk]").forEach((hunk) => {
        count += 1;
        watch(hunk, seen, `${file.id}:${hunk.dataset.hunk}`);
      });
    });
    if (count > of) of = count;
    if (form.dataset.parts === "here" && !document.querySelector("[data-unloaded]")) whole = true;
    parts().forEach((part, at) => watch(part, sections, at));
    keep();
  }

  function span(ms) {
    return ms < 60000 ? `${Math.round(ms / 1000)} s` : `${Math.round(ms / 60000)} min`;
  }

  function draw() {
    if (!line || !form.isConnected) return;
    const hunks = of ? `; ${seen.size} of ${of}${whole ? "" : " or more"} hunks were on screen` : "";
    line.textContent = `${span(Date.now() - began)} on this page${hunks}`;
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { visible = shown(); since = 0; } else { since = Date.now(); }
  });
  document.addEventListener("toggle", (event) => {
    if (event.target.open && event.target.closest("#main")) expanded.add(event.target);
  }, true);
  document.body.addEventListener("htmx:afterSettle", look);
  form.addEventListener("submit", () => {
    claims.value = JSON.stringify({
      ...(of ? { hunks: seen.size, of, whole } : {}),
      sections: sections.size,
      sections_of: parts().length,
      expanded: expanded.size,
      visible_ms: shown(),
    });
  });
  window.addEventListener("pagehide", keep);
  look();
  draw();
  setInterval(draw, 1000);
})();
