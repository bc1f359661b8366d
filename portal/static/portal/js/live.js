// Looks again when the portal says that something has changed.
//
// A message on the socket carries no data: it only makes the parts of the page that have
// hx-trigger="look from:body" ask for themselves over HTTP. A message that comes twice, late or
// not at all does no harm, because the page also looks every 20 seconds.
(() => {
  "use strict";

  const place = document.querySelector("[data-live]");
  const offline = document.getElementById("offline");
  const POLL = 20000, QUIET = 250, SLOWEST = 30000;
  // Signed out, not there, or refused: asking again cannot help.
  const FINAL = new Set([1008, 4401, 4403, 4404]);

  let attempts = 0, socket = null, retry = 0, lastLook = 0, pending = 0, away = false, done = false, hints = false;

  // A burst of messages becomes one look now and one after the last of them.
  function look() {
    if (pending) return;
    const wait = Math.max(0, lastLook + QUIET - Date.now());
    pending = setTimeout(() => {
      pending = 0;
      lastLook = Date.now();
      document.body.dispatchEvent(new CustomEvent("look"));
    }, wait);
  }

  let said = "";
  function say(state) {
    said = state;
    document.querySelectorAll("[data-live-state]").forEach((line) => {
      line.querySelectorAll("[data-when]").forEach((part) => { part.hidden = part.dataset.when !== state; });
    });
  }

  function connect() {
    if (!place || done) return;
    clearTimeout(retry);
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    const mine = new WebSocket(`${scheme}//${location.host}${place.dataset.live}`);
    socket = mine;
    mine.addEventListener("message", (event) => {
      attempts = 0;
      hints = event.data === "look";
      say(hints ? "live" : "polling");
      look();
    });
    mine.addEventListener("close", (event) => {
      if (socket !== mine) return;
      socket = null;
      if (FINAL.has(event.code)) { done = true; say("over"); look(); return; }
      say("polling");
      // Twice as long each time, with jitter, so that a restart is not met by everybody at once.
      const longest = Math.min(SLOWEST, 1000 * 2 ** attempts);
      attempts += 1;
      retry = setTimeout(connect, longest * (0.5 + Math.random() / 2));
    });
  }

  function lost() {
    if (!offline || away) return;
    away = true;
    const moment = new Date();
    const time = offline.querySelector("time");
    time.dateTime = moment.toISOString();
    time.textContent = moment.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
    offline.hidden = false;
    document.body.dataset.offline = "";
    say("lost");
  }

  function found() {
    if (!away) return;
    away = false;
    offline.hidden = true;
    delete document.body.dataset.offline;
    say(hints && socket && socket.readyState === WebSocket.OPEN ? "live" : "polling");
  }

  document.body.addEventListener("htmx:sendError", lost);
  document.body.addEventListener("htmx:timeout", lost);
  document.body.addEventListener("htmx:responseError", (event) => {
    const status = event.detail.xhr.status;
    if (status >= 502 && status <= 504) lost();
    // Signed out meanwhile: the whole page must be asked for again, it leads to signing in.
    if (status === 401) location.reload();
  });
  document.body.addEventListener("htmx:afterRequest", (event) => {
    const status = event.detail.xhr ? event.detail.xhr.status : 0;
    if (status > 0 && status < 500) found();
  });

  // A part of the page that was drawn anew does not know the state yet.
  document.body.addEventListener("htmx:afterSettle", () => { if (said) say(said); });

  window.addEventListener("offline", lost);
  window.addEventListener("online", () => { attempts = 0; if (!socket) connect(); look(); });
  if (offline) {
    offline.querySelector("a").addEventListener("click", (event) => {
      event.preventDefault();
      attempts = 0;
      if (!socket) connect();
      look();
    });
  }

  if (!place) return;
  connect();
  setInterval(() => { if (!document.hidden) look(); }, POLL);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
  window.addEventListener("pagehide", () => { done = true; if (socket) socket.close(); });
  window.addEventListener("pageshow", (event) => {
    if (event.persisted) { done = false; connect(); look(); }
  });
})();
