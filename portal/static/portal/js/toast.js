// Closes a toast, or dismisses it by itself once it has been readable for a while.
(() => {
  "use strict";

  document.addEventListener("click", (event) => {
    const button = event.target.closest(".toast [data-close]");
    if (button) button.closest(".toast").remove();
  });
  // Refusals stay until they are closed.
  setTimeout(() => {
    document.querySelectorAll(".toast:not([data-stays])").forEach((toast) => {
      if (!toast.matches(":hover, :focus-within")) toast.remove();
    });
  }, 12000);
})();
