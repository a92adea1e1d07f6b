// Shared by all pages of the console: forms that call the admin API, and pages that refresh themselves.
// docs/console.md describes the attributes that it reads.

import { FieldErrors, clearErrors, fieldNamed, read, showErrors } from "./fields.js";
import { t, told } from "./language.js";
import { localize } from "./times.js";
export { localize };

const csrf = document.querySelector("meta[name=csrf]")?.content;
const SIGN_IN = "/admin/sign-in";

/** Goes to the sign-in page, and returns to this page afterwards. */
function signIn() {
  location.assign(`${SIGN_IN}?then=${encodeURIComponent(location.pathname + location.search)}`);
}

// Forms

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
    return {
      ok: false,
      text: t("No answer from the service. The change may have been made: look before you repeat it.", "服务没有回应。更改可能已经生效，请先确认再重试。"),
    };
  }
  const answer = await response.json().catch(() => ({}));
  if (response.ok) return { ok: true, answer };
  if (answer.code === "signed-out") {
    signIn();
    return null;
  }
  const until = response.headers.get("Retry-After") ?? "";
  const wait = Number(until) || (until.endsWith("GMT") && Math.ceil((Date.parse(until) - Date.now()) / 1000));
  const after = response.status === 429 && wait > 0 ? t(` Try again in ${wait} s.`, `请在 ${wait} 秒后重试。`) : "";
  return { ok: false, field: answer.field, text: `${told(answer, response.status)}${after}` };
}

/** Shows the result of a form, and moves the focus there, so that a screen reader reads it. */
export function say(form, text, className = "") {
  const output = form.querySelector("output") ?? form.appendChild(document.createElement("output"));
  output.setAttribute("role", "status");
  output.tabIndex = -1;
  output.className = className;
  output.textContent = text;
  if (text !== "") output.focus();
}

/** Asks before an action that cannot be undone. `more` stands below the question. */
export function ask(question, { yes = t("Yes, go on", "是，继续"), no = t("Cancel", "取消") } = {}, ...more) {
  const dialog = document.createElement("dialog");
  const form = document.createElement("form");
  form.method = "dialog";
  const text = document.createElement(more.length > 0 ? "h2" : "p");
  text.textContent = question;
  text.id = "question";
  dialog.setAttribute("aria-labelledby", "question");
  const actions = document.createElement("div");
  actions.className = "actions";
  for (const [value, label, className] of [["yes", yes, "button"], ["no", no, "quiet"]]) {
    const button = document.createElement("button");
    Object.assign(button, { value, className, textContent: label });
    // Enter must not confirm an action that cannot be undone.
    button.autofocus = value === "no";
    actions.append(button);
  }
  form.append(text, ...more, actions);
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

/** What a page does before it sends a form, by form: from the values that were read to those that are sent, or null to send nothing. */
export const preparations = new WeakMap();

async function send(form, button) {
  if (form.dataset.busy) return;
  const question = button?.dataset.confirm ?? form.dataset.confirm;
  form.dataset.busy = "1";
  const buttons = form.querySelectorAll("button");
  try {
    clearErrors(form);
    say(form, "");
    let content = read(form, button);
    const prepare = button?.dataset.api ? undefined : preparations.get(form);
    if (prepare) content = { values: await prepare(content.values) };
    if (content.values === null || (question && !(await ask(question)))) {
      button?.focus();
      return;
    }
    for (const each of buttons) each.setAttribute("aria-disabled", "true");
    // A button may make its own call with the same fields, for example to preview a change.
    const { api, method = "POST", then, show, tell } = button?.dataset.api ? button.dataset : form.dataset;
    const done = await call(method, api, content);
    if (done === null) return;
    if (!done.ok) {
      refuse(form, done);
    } else if (tell) {
      // The text stays in the form, to be changed or sent.
      say(form, String(done.answer[tell] ?? t("Done.", "完成。")), "lines");
    } else if (show) {
      form.reset();
      say(form, String(done.answer[show] ?? t("Done.", "完成。")), "good secret");
    } else if (then) {
      location.assign(fill(then, done.answer));
    } else {
      location.reload();
    }
  } catch (error) {
    if (!(error instanceof FieldErrors)) throw error;
    showErrors(error.errors);
  } finally {
    delete form.dataset.busy;
    for (const each of buttons) each.removeAttribute("aria-disabled");
  }
}

/** Shows why the API refused a form: at the field that it names, else below the form. */
function refuse(form, { field: name, text }) {
  const field = fieldNamed(form, name);
  // The API calls the field by its own name, and people by its label.
  if (field) showErrors([[field, text.replace(`${name} `, "")]]);
  else say(form, text, "bad");
}

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.dataset.api === undefined) return;
  event.preventDefault();
  void send(form, event.submitter);
});
/** On a phone each row is a card: its cells have the names of their columns, and roles, which a cell that is no table cell loses. */
function makeCards() {
  for (const table of document.querySelectorAll(".table table:not([data-cards])")) {
    const names = [...table.querySelectorAll("thead th")].map((head) => head.textContent.trim());
    const rows = [...table.querySelectorAll("tbody > tr")];
    // A table without rows is filled by a script of its page.
    if (rows.length === 0) continue;
    table.dataset.cards = "1";
    table.setAttribute("role", "table");
    for (const group of table.querySelectorAll("thead, tbody")) group.setAttribute("role", "rowgroup");
    for (const row of table.querySelectorAll("tr")) row.setAttribute("role", "row");
    for (const head of table.querySelectorAll("thead th")) head.setAttribute("role", "columnheader");
    for (const row of rows) {
      let column = 0;
      for (const cell of row.children) {
        cell.dataset.label = names[column] ?? "";
        cell.setAttribute("role", cell.tagName === "TH" ? "rowheader" : "cell");
        cell.classList.toggle("bare", cell.textContent.trim() === "" && cell.childElementCount === 0);
        // One box for all that stands beside the column's name.
        const box = document.createElement("div");
        box.className = "cell";
        box.append(...cell.childNodes);
        cell.append(box);
        column += cell.colSpan;
      }
    }
  }
}

/** Errors stand at the fields, in the language of the page, instead of the browser's own bubbles. */
const checkByScript = () => document.querySelectorAll("form[data-api]").forEach((form) => { form.noValidate = true; });

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
  makeCards();
  checkByScript();
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
makeCards();
checkByScript();
const main = document.querySelector("main[data-refresh]");
if (main) void keepFresh(main);
document.documentElement.dataset.ready = "1";
