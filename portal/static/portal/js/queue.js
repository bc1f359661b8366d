// The queue page: what arrives waits behind a button, and picked packets are read in their order.
(() => {
  "use strict";

  const bar = document.querySelector("[data-bulk]");
  const boxes = () => [...document.querySelectorAll(".row-pick input")];

  function bulk() {
    if (!bar) return;
    const picked = boxes().filter((box) => box.checked);
    bar.hidden = picked.length === 0;
    const said = picked.length === 1 ? "1 packet selected" : `${picked.length} packets selected`;
    bar.querySelector("[data-picked]").textContent = said;
    const first = picked.length ? picked[0].closest("[data-row]").querySelector(".row-link") : null;
    if (first) bar.querySelector("[data-bulk-first]").href = first.href;
    const order = picked.map((box) => box.closest("[data-row]").querySelector(".row-link").getAttribute("href"));
    sessionStorage.setItem("picked", JSON.stringify(order));
  }

  document.addEventListener("change", (event) => {
    if (event.target.matches(".row-pick input")) bulk();
  });
  document.addEventListener("click", (event) => {
    if (!event.target.closest("[data-bulk-none]")) return;
    boxes().forEach((box) => { box.checked = false; });
    bulk();
  });

  // The page title tells of new packets, so that a tab in the background does.
  document.body.addEventListener("htmx:afterSettle", () => {
    const news = document.querySelector("[data-news]");
    if (!news) return;
    const plain = document.title.replace(/^\(\+\d+\) /, "");
    const count = Number(news.dataset.news);
    document.title = count > 0 ? `(+${count}) ${plain}` : plain;
  });

  boxes().forEach((box) => { box.checked = false; });
  bulk();
})();
