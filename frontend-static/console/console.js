// Shared by all pages of the console: forms that call the admin API, and pages that refresh themselves.
// docs/console.md describes the attributes that it reads.

import { localize, momentOf } from "./times.js";
export { localize };

const csrf = document.querySelector("meta[name=csrf]")?.content;
const SIGN_IN = "/admin/sign-in";

/** Goes to the sign-in page, and returns to this page afterwards. */
function signIn() {
  location.assign(`${SIGN_IN}?then=${encodeURIComponent(location.pathname + location.search)}`);
}

// Forms

/** The error in a field, for people. */
class FieldError extends Error {}

const READERS = {
  text: (text) => text,
  integer(text, name) {
    const number = Number(text);
    if (!Number.isSafeInteger(number)) throw new FieldError(`${name}: write a whole number.`);
    return number;
  },
  boolean: (text) => text === "true",
  lines: (text) => text.split("\n").map((line) => line.trim()).filter((line) => line !== ""),
  json(text, name) {
    try {
      return JSON.parse(text);
    } catch (error) {
      throw new FieldError(`${name}: this is not JSON. ${error.message}`);
    }
  },
  time(_, name, field) {
    const { ms, error } = momentOf(field);
    if (error) throw new FieldError(`${name}: ${error}`);
    return ms;
  },
};

/** Reads the fields of a form, and of the button that sends it: an object for JSON, or a file. */
export function read(form, button) {
  const values = {};
  for (const field of form.elements) {
    const { name, type } = field;
    if (!name || field.disabled || (type === "radio" && !field.checked)) continue;
    if ((field instanceof HTMLButtonElement || type === "submit") && field !== button) continue;
    const kind = field.dataset.kind ?? "text";
    if (kind === "file") {
      if (field.files[0]) return { file: field.files[0] };
      throw new FieldError("Choose a file.");
    }
    // A password may consist of spaces.
    const text = type === "password" ? field.value : field.value.trim();
    if (type === "checkbox") {
      values[name] = field.checked;
    } else if (text !== "") {
      values[name] = READERS[kind](field.value, name, field);
    } else if (field.dataset.empty === "null") {
      values[name] = null;
    } else if (field.dataset.empty === "text") {
      values[name] = "";
    }
  }
  return { values };
}

/** Replaces `{field}` in an address by the field's value. `used` gets the names that were replaced. */
const fill = (address, values, used = new Set()) =>
  address.replace(/\{(\w+)\}/g, (_, name) => {
    used.add(name);
    return encodeURIComponent(values[name] ?? "");
  });

/** Calls the API. Returns the answer, or null when the account is signed out and the page goes to sign in. */
export async function call(method, address, { values, file } = {}) {
  const headers = { Accept: "application/json" };
  if (csrf) headers["X-CSRF-Token"] = csrf;
  const used = new Set();
  const url = fill(address, values ?? {}, used);
  let body;
  if (file) {
    headers["Content-Type"] = file.type || "application/octet-stream";
    body = file;
  } else if (method !== "GET" && method !== "DELETE") {
    const rest = Object.entries(values ?? {}).filter(([name]) => !used.has(name));
    headers["Content-Type"] = "application/json";
    body = JSON.stringify(Object.fromEntries(rest));
  }
  let response;
  try {
    response = await fetch(url, { method, headers, body });
  } catch {
    return { ok: false, text: "No answer from the service. The change may have been made: look before you repeat it." };
  }
  const answer = await response.json().catch(() => ({}));
  if (response.ok) return { ok: true, answer };
  if (answer.code === "signed-out") {
    signIn();
    return null;
  }
  const until = response.headers.get("Retry-After") ?? "";
  const wait = Number(until) || (until.endsWith("GMT") && Math.ceil((Date.parse(until) - Date.now()) / 1000));
  const after = response.status === 429 && wait > 0 ? ` Try again in ${wait} s.` : "";
  return { ok: false, text: `${answer.detail ?? answer.title ?? `The service answered ${response.status}.`}${after}` };
}

/** Shows the result of a form, and moves the focus there, so that a screen reader reads it. */
function say(form, text, className = "") {
  const output = form.querySelector("output") ?? form.appendChild(document.createElement("output"));
  output.setAttribute("role", "status");
  output.tabIndex = -1;
  output.className = className;
  output.textContent = text;
  if (text !== "") output.focus();
}

/** Asks before an action that cannot be undone. */
function confirmed(question) {
  const dialog = document.createElement("dialog");
  const form = document.createElement("form");
  form.method = "dialog";
  const text = document.createElement("p");
  text.textContent = question;
  text.id = "question";
  dialog.setAttribute("aria-labelledby", "question");
  const actions = document.createElement("div");
  actions.className = "actions";
  for (const [value, label, className] of [["yes", "Yes, go on", "button"], ["no", "Cancel", "quiet"]]) {
    const button = document.createElement("button");
    Object.assign(button, { value, className, textContent: label });
    // Enter must not confirm an action that cannot be undone.
    button.autofocus = value === "no";
    actions.append(button);
  }
  form.append(text, actions);
  dialog.append(form);
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((answered) => {
    dialog.addEventListener("close", () => {
      answered(dialog.returnValue === "yes");
      dialog.remove();
    });
  });
}

async function send(form, button) {
  if (form.dataset.busy) return;
  const question = button?.dataset.confirm ?? form.dataset.confirm;
  form.dataset.busy = "1";
  const buttons = form.querySelectorAll("button");
  try {
    const content = read(form, button);
    if (question && !(await confirmed(question))) {
      button?.focus();
      return;
    }
    say(form, "");
    for (const each of buttons) each.setAttribute("aria-disabled", "true");
    // A button may make its own call with the same fields, for example to preview a change.
    const { api, method = "POST", then, show, tell } = button?.dataset.api ? button.dataset : form.dataset;
    const done = await call(method, api, content);
    if (done === null) return;
    if (!done.ok) {
      say(form, done.text, "bad");
    } else if (tell) {
      // The text stays in the form, to be changed or sent.
      say(form, String(done.answer[tell] ?? "Done."), "lines");
    } else if (show) {
      form.reset();
      say(form, String(done.answer[show] ?? "Done."), "good secret");
    } else if (then) {
      location.assign(fill(then, done.answer));
    } else {
      location.reload();
    }
  } catch (error) {
    if (!(error instanceof FieldError)) throw error;
    say(form, error.message, "bad");
  } finally {
    delete form.dataset.busy;
    for (const each of buttons) each.removeAttribute("aria-disabled");
  }
}

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.dataset.api === undefined) return;
  event.preventDefault();
  void send(form, event.submitter);
});
// A page is not reloaded while a form is being edited.
document.addEventListener("input", (event) => {
  const form = event.target.closest?.("form[data-api]");
  if (form) form.dataset.edited = "1";
});

// Pages that refresh themselves

/** A page without input for this long is not refreshed, so that the session can expire although a page is open. */
const REST_AFTER_MS = 15 * 60_000;
let touchedMs = Date.now();
for (const touch of ["pointermove", "pointerdown", "keydown", "scroll", "visibilitychange"]) {
  document.addEventListener(touch, () => { touchedMs = Date.now(); }, { passive: true });
}

/** Whether a person is using the page's content right now. */
function inUse(main) {
  const focus = document.activeElement;
  const selects = String(getSelection()) !== "";
  return (focus !== main && main.contains(focus)) || selects || main.querySelector("form[data-edited], form[data-busy]") !== null
    || document.querySelector("dialog[open]") !== null;
}

async function renew(main) {
  const response = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (response.redirected && new URL(response.url).pathname === SIGN_IN) {
    signIn();
    return;
  }
  if (!response.ok) throw new Error(String(response.status));
  const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
  const content = fresh.querySelector("main");
  if (!content || inUse(main)) return;
  const open = [...main.querySelectorAll("details[open][id]")].map((details) => details.id);
  main.replaceChildren(...content.childNodes);
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  const [nav, freshNav] = [document, fresh].map((page) => page.querySelector("nav.sections"));
  if (nav && freshNav && !nav.contains(document.activeElement)) nav.replaceChildren(...freshNav.childNodes);
  localize();
  document.dispatchEvent(new Event("renewed"));
}

/** Refreshes the page every `data-refresh` seconds while it is visible and not in use. After failures it waits longer. */
async function keepFresh(main) {
  const every = Math.max(1, Number(main.dataset.refresh) || 5) * 1000;
  let fails = 0;
  for (;;) {
    await new Promise((done) => setTimeout(done, Math.min(every * 2 ** fails, 60_000)));
    const rests = Date.now() - touchedMs > REST_AFTER_MS;
    main.toggleAttribute("data-stale", rests || fails > 0);
    if (rests || document.hidden || inUse(main)) continue;
    try {
      await renew(main);
      fails = 0;
    } catch {
      fails = Math.min(fails + 1, 5);
    }
  }
}

localize();
const main = document.querySelector("main[data-refresh]");
if (main) void keepFresh(main);
document.documentElement.dataset.ready = "1";
