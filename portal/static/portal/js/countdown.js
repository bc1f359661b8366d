// Keeps clocks true: time left in [data-until], time passed in time[data-ago].
// The server has already written both, so that a page without script is right when it arrives.
(() => {
  "use strict";

  // The server's clock decides; the difference to this machine's is taken once per page.
  const skew = Date.parse(document.body.dataset.now) - Date.now() || 0;
  const now = () => Date.now() + skew;
  const MINUTE = 60, HOUR = 3600, DAY = 86400;
  const two = (number) => String(number).padStart(2, "0");

  function span(seconds) {
    const whole = Math.max(0, Math.floor(seconds));
    if (whole < MINUTE) return `${whole} s`;
    if (whole < HOUR) return `${Math.floor(whole / MINUTE)} min`;
    if (whole < DAY) {
      const minutes = Math.floor((whole % HOUR) / MINUTE);
      return `${Math.floor(whole / HOUR)} h` + (minutes ? ` ${two(minutes)} m` : "");
    }
    const hours = Math.floor((whole % DAY) / HOUR);
    return `${Math.floor(whole / DAY)} d` + (hours ? ` ${hours} h` : "");
  }

  function left(seconds) {
    const whole = Math.max(0, Math.ceil(seconds));
    if (whole < 15 * MINUTE) return `${Math.floor(whole / MINUTE)}:${two(whole % MINUTE)}`;
    return span(whole);
  }

  function write(node, text) {
    if (node && node.textContent !== text) node.textContent = text;
  }

  function drawLeft(clock) {
    const until = Date.parse(clock.dataset.until);
    const seconds = (until - now()) / 1000;
    write(clock.querySelector(".countdown-time"), left(seconds));
    const since = Date.parse(clock.dataset.since);
    const bar = clock.querySelector("progress");
    if (bar && until > since) {
      bar.value = Math.min(100, Math.max(0, Math.round((100 * (until - now())) / (until - since))));
    }
    const tone = seconds < 5 * MINUTE ? "is-danger" : seconds < 15 * MINUTE ? "is-wait" : "";
    if (tone && !clock.classList.contains(tone)) {
      clock.classList.remove("is-wait");
      clock.classList.add(tone);
      const wanted = document.getElementById("icons").content.children[tone === "is-danger" ? 1 : 0];
      const small = clock.querySelector("small");
      const word = small && small.querySelector("span");
      if (word) {
        small.querySelectorAll("svg").forEach((old) => old.remove());
        small.prepend(wanted.cloneNode(true));
        if (tone === "is-danger" && word.textContent === "left") word.textContent = "soon";
      }
    }
    if (seconds <= 0) write(clock.querySelector("small span"), "time is up");
    announce(clock, seconds);
  }

  // Countdowns are not live regions; three moments are said aloud, on pages that have a place for it.
  function announce(clock, seconds) {
    const place = document.getElementById("time-said");
    if (!place || !clock.hasAttribute("data-said")) return;
    for (const minutes of [1, 5, 15]) {
      if (seconds > 0 && seconds <= minutes * MINUTE) {
        if (clock.dataset.said !== String(minutes)) {
          // The first look at a page says nothing: the time is there to be read.
          if (clock.dataset.said !== "") {
            write(place, `${minutes === 1 ? "1 minute" : `${minutes} minutes`} left to decide`);
          }
          clock.dataset.said = String(minutes);
        }
        return;
      }
    }
    clock.dataset.said = "more";
  }

  function drawAgo(time) {
    const seconds = (now() - Date.parse(time.dateTime)) / 1000;
    if (seconds < DAY) write(time, seconds < 5 ? "just now" : `${span(seconds)} ago`);
  }

  function tick() {
    document.querySelectorAll("[data-until]").forEach(drawLeft);
    document.querySelectorAll("time[data-ago]").forEach(drawAgo);
  }

  tick();
  setInterval(() => { if (!document.hidden) tick(); }, 1000);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) tick(); });
})();
