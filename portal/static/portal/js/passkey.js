// Passkeys: a form with [data-passkey] gets its answer from the browser before it is sent.
//
// "create" makes a key, "get" signs with one, "approve" signs an approval of the decision form. What
// is to be signed comes from the address in [data-options]; the answer goes into the hidden field
// `passkey`. Without this script the page says what is missing, and the server refuses.
(() => {
  "use strict";

  const READ = { create: ["attestationObject"], get: ["authenticatorData", "signature"] };

  function bytes(text) {
    const raw = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
    return Uint8Array.from(raw, (char) => char.charCodeAt(0));
  }

  function written(buffer) {
    const raw = String.fromCharCode(...new Uint8Array(buffer));
    return btoa(raw).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
  }

  const named = (list) => (list || []).map((each) => ({ ...each, id: bytes(each.id) }));

  // The words for the person, as the end of what they tried.
  function words(error) {
    if (error.said) return error.said;
    if (error.name === "InvalidStateError") return "This device has a passkey on your account already.";
    if (error.name === "SecurityError") return "Passkeys do not work at this address.";
    if (error.name === "NotAllowedError") return "The passkey was not used: it was cancelled, took too long, or is none of yours. Nothing was sent.";
    return "The browser could not use a passkey. Nothing was sent.";
  }

  async function options(form, submitter) {
    const data = new FormData(form);
    data.delete("passkey");
    if (submitter && submitter.name) data.set(submitter.name, submitter.value);
    let answer;
    try {
      answer = await fetch(form.dataset.options, { method: "POST", body: data, headers: { "HX-Request": "true" } });
    } catch {
      throw { said: "The portal cannot be reached. Nothing was sent." };
    }
    if (answer.ok && answer.headers.get("Content-Type") === "application/json") return answer.json();
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const refusal = page.querySelector("#refusal p");
    throw { said: refusal ? refusal.textContent : "The portal did not answer. Reload the page. Nothing was sent." };
  }

  async function answered(kind, asked) {
    const { nonce, ...rest } = asked;
    const publicKey = { ...rest, challenge: bytes(asked.challenge) };
    if (asked.user) publicKey.user = { ...asked.user, id: bytes(asked.user.id) };
    if (asked.allowCredentials) publicKey.allowCredentials = named(asked.allowCredentials);
    if (asked.excludeCredentials) publicKey.excludeCredentials = named(asked.excludeCredentials);
    const made = await navigator.credentials[kind]({ publicKey });
    const response = Object.fromEntries(
      ["clientDataJSON", ...READ[kind]].map((name) => [name, written(made.response[name])]),
    );
    if (kind === "create") return { id: made.id, rawId: made.id, type: made.type, response };
    return {
      credential: made.id,
      authenticator_data: response.authenticatorData,
      client_data: response.clientDataJSON,
      signature: response.signature,
      ...(nonce ? { nonce } : {}),
    };
  }

  document.querySelectorAll("form[data-passkey]").forEach((form) => {
    const field = form.elements.namedItem("passkey");
    const said = form.querySelector("[data-said]");
    let busy = false;

    function tell(text) {
      said.textContent = text;
      said.hidden = !text;
    }

    form.addEventListener("submit", async (event) => {
      const submitter = event.submitter;
      const approves = form.dataset.passkey === "approve";
      if (event.defaultPrevented || field.value) return;
      if (approves && (!submitter || submitter.value !== "approve")) return;
      event.preventDefault();
      if (busy) return;
      busy = true;
      tell("");
      const dialog = submitter && submitter.closest("dialog");
      if (dialog) dialog.close();
      try {
        if (!window.PublicKeyCredential) throw { said: "This browser has no passkeys at this address. Nothing was sent." };
        const asked = await options(form, submitter);
        field.value = JSON.stringify(await answered(form.dataset.passkey === "create" ? "create" : "get", asked));
        delete form.dataset.sent;
        form.requestSubmit(submitter);
      } catch (error) {
        field.value = "";
        tell(words(error));
        // What was written is kept for a reload, as before the button was pressed.
        const comment = form.elements.namedItem("comment");
        if (comment) comment.dispatchEvent(new Event("input"));
        tell(words(error));
        delete form.dataset.sent;
        if (submitter && !dialog) submitter.focus({ preventScroll: true });
      } finally {
        busy = false;
      }
    });

    // Back from the next page: a signature is used once.
    window.addEventListener("pageshow", () => { field.value = ""; });
  });
})();
