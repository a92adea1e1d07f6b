// The fields of a form: what a person typed becomes what the API takes, and an error stands at its field, in people's words.

import { t } from "./language.js";
import { money, parseMoney } from "./money.js";
import { momentOf } from "./times.js";

/** Errors in fields. Each is shown at its field. */
export class FieldErrors extends Error {
  constructor(errors) {
    super();
    this.errors = errors;
  }
}

/** The currency of a field for money: its own, or that of the form's choice that it names. */
export function currencyOf(field) {
  const { code, digits } = field.form?.elements[field.dataset.currency]?.selectedOptions[0].dataset ?? field.dataset;
  return { code, digits: Number(digits) };
}

function number(text, { least, most }, scale = 1) {
  const value = Number(text) * scale;
  if (!Number.isFinite(value)) throw t("write a number", "请输入数字");
  if (value < least) throw t(`at least ${least / scale}`, `至少为 ${least / scale}`);
  if (value > most) throw t(`at most ${most / scale}`, `最多为 ${most / scale}`);
  return Math.round(value);
}

/** What a field's text means, by its `data-kind`. They throw what is wrong, as a text for people. */
const READERS = {
  text: (text) => text,
  integer(text) {
    const value = Number(text);
    if (!Number.isSafeInteger(value)) throw t("write a whole number", "请输入整数");
    return value;
  },
  boolean: (text) => text === "true",
  lines: (text) => text.split("\n").map((line) => line.trim()).filter((line) => line !== ""),
  json(text) {
    try {
      return JSON.parse(text);
    } catch (error) {
      throw t(`this is not JSON. ${error.message}`, `这不是 JSON。${error.message}`);
    }
  },
  time(_, field) {
    const { ms, error } = momentOf(field);
    if (error) throw error;
    return ms;
  },
  // Minutes are sent as seconds.
  minutes: (text) => number(text, { least: 1, most: Infinity }, 60),
  money(text, field) {
    const currency = currencyOf(field);
    const { cents, error } = parseMoney(text, currency);
    if (error) throw error;
    const most = Number(field.dataset.most);
    if (cents > most) throw t(`at most ${money(most, currency)}`, `最多为 ${money(most, currency)}`);
    return cents;
  },
};

/** The error that the browser sees in a field, in the language of the page; "" if there is none. */
function fault({ validity, min, max, maxLength, minLength, title, validationMessage }) {
  if (validity.valid) return "";
  if (validity.valueMissing) return t("this is missing", "此项必填");
  if (validity.badInput) return t("this is not complete", "填写不完整");
  if (validity.rangeUnderflow) return t(`at least ${min}`, `至少为 ${min}`);
  if (validity.rangeOverflow) return t(`at most ${max}`, `最多为 ${max}`);
  if (validity.stepMismatch) return t("write a whole number", "请输入整数");
  if (validity.tooLong) return t(`at most ${maxLength} characters`, `最多 ${maxLength} 个字符`);
  if (validity.tooShort) return t(`at least ${minLength} characters`, `至少 ${minLength} 个字符`);
  return title || validationMessage;
}

/** Reads the fields of a form, and of the button that sends it: an object for JSON, or a file. Throws all errors at once. */
export function read(form, button) {
  const values = {};
  const errors = [];
  for (const field of form.elements) {
    const { name, type } = field;
    if (field.matches(":disabled") || (type === "radio" && !field.checked)) continue;
    if ((field instanceof HTMLButtonElement || type === "submit") && field !== button) continue;
    const error = fault(field);
    if (error) {
      errors.push([field, error]);
      continue;
    }
    if (!name) continue;
    const { kind = "text", instead } = field.dataset;
    if (kind === "file") return finish(errors, { file: field.files[0] });
    // A password may consist of spaces.
    const text = type === "password" ? field.value : field.value.trim();
    if (instead !== undefined) {
      if (field.checked) values[instead] = Number(field.value);
    } else if (type === "checkbox") {
      values[name] = field.checked;
    } else if (text !== "") {
      try {
        values[name] = READERS[kind](field.value, field);
      } catch (wrong) {
        if (typeof wrong !== "string") throw wrong;
        errors.push([field, wrong]);
      }
    } else if (field.dataset.empty === "null") {
      values[name] = null;
    } else if (field.dataset.empty === "text") {
      values[name] = "";
    }
  }
  return finish(errors, { values });
}

function finish(errors, content) {
  if (errors.length > 0) throw new FieldErrors(errors);
  return content;
}

/** The field's name for people. */
export const labelOf = (field) => field.labels?.[0]?.querySelector("span")?.textContent.trim() || field.name;

/** The field that the API names in a problem, if a person can see it. */
export function fieldNamed(form, name) {
  const found = name ? form.elements[name] : undefined;
  const field = found instanceof RadioNodeList ? [...found].find((one) => one.type !== "hidden") : found;
  return field?.type === "hidden" ? document.querySelector(field.dataset.shown ?? "none") : field;
}

/** Takes the error away from a field. */
function clear(field) {
  const error = document.getElementById(field.getAttribute("aria-errormessage"));
  if (!error) return;
  const others = (field.getAttribute("aria-describedby") ?? "").split(" ").filter((id) => id !== error.id);
  if (others.join("") === "") field.removeAttribute("aria-describedby");
  else field.setAttribute("aria-describedby", others.join(" "));
  field.removeAttribute("aria-invalid");
  field.removeAttribute("aria-errormessage");
  error.remove();
}

export function clearErrors(form) {
  for (const field of form.elements) clear(field);
}

let errorCount = 0;

/** Shows errors at their fields, and moves the focus to the first one. */
export function showErrors(errors) {
  for (const [field, text] of errors) {
    clear(field);
    errorCount += 1;
    const error = document.createElement("small");
    Object.assign(error, { id: `error-${errorCount}`, className: "error", textContent: `${labelOf(field)}${t(": ", "：")}${text}` });
    field.setAttribute("aria-invalid", "true");
    field.setAttribute("aria-errormessage", error.id);
    field.setAttribute("aria-describedby", [field.getAttribute("aria-describedby"), error.id].filter(Boolean).join(" "));
    (field.closest("label") ?? field).after(error);
    field.closest("details")?.setAttribute("open", "");
  }
  errors[0]?.[0].focus();
}

/** A box such as "no limit" takes the place of another field. */
export function replace(box) {
  const other = box.form.elements[box.dataset.instead];
  other.disabled = box.checked;
  clear(other);
}

// A search with times is an address: it names moments, and the page may be opened in another zone.
const times = (form) => [...form.elements].filter((field) => field.dataset.kind === "time" && field.value !== "");
document.addEventListener("submit", (event) => {
  if (event.target.dataset.api !== undefined) return;
  const errors = times(event.target).map((field) => [field, momentOf(field).error]).filter(([, error]) => error);
  if (errors.length > 0) event.preventDefault();
  showErrors(errors);
});
document.addEventListener("formdata", ({ target, formData }) => {
  for (const field of times(target)) formData.set(field.name, momentOf(field).ms);
});

document.addEventListener("input", ({ target }) => {
  if (target.dataset?.instead !== undefined) replace(target);
  if (target.form) clear(target);
});
