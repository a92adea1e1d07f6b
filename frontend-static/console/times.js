// Local times: the zone beside each time, and the hours that a change of the clock leaves out or repeats.

import { locale, t } from "./language.js";

const DAY_MS = 86_400_000;
const MINUTE_MS = 60_000;
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
// The long form of a time names its zone.
const formatter = new Intl.DateTimeFormat(locale, { dateStyle: "medium", timeStyle: "long" });
const utc = new Intl.DateTimeFormat(locale, { dateStyle: "medium", timeStyle: "long", timeZone: "UTC" });
/** The choice between two moments, by the field whose time is repeated. */
const choices = new WeakMap();

const offsetMs = (ms) => -new Date(ms).getTimezoneOffset() * MINUTE_MS;

/** The offset of a moment, such as `UTC+02:00`. */
function offsetText(ms) {
  const minutes = offsetMs(ms) / MINUTE_MS;
  const [hours, rest] = [Math.floor(Math.abs(minutes) / 60), Math.abs(minutes) % 60].map((n) => String(n).padStart(2, "0"));
  return `UTC${minutes < 0 ? "−" : "+"}${hours}:${rest}`;
}

/** The moments at which the clocks of this zone show a time: none for a time that is left out, two for a repeated one. */
function moments(text) {
  const asUtc = Date.parse(`${text}Z`);
  if (Number.isNaN(asUtc)) return null;
  const offsets = new Set([asUtc - DAY_MS, asUtc + DAY_MS].map(offsetMs));
  return [...offsets].map((offset) => asUtc - offset).filter((ms) => ms + offsetMs(ms) === asUtc).sort((a, b) => a - b);
}

const skipped = () => t(`Clocks in ${zone} are put forward then and skip this time. Write another one.`, `${zone} 的时钟此时拨快，没有这个时间，请另选时间。`);
const repeated = () =>
  t(`Clocks in ${zone} are put back then and show this time twice. Choose which one is meant.`, `${zone} 的时钟此时拨慢，这个时间出现两次，请选择其中一个。`);

/** A moment in the reader's zone, and in UTC. */
export const inZone = (ms) => formatter.format(ms);
export const inUtc = (ms) => utc.format(ms);

/** The moment of a field for a date and time, or the error in it. */
export function momentOf(field) {
  const found = moments(field.value);
  if (found === null) return { error: t("write a date and a time", "请填写日期和时间") };
  if (found.length === 0) return { error: skipped() };
  if (found.length === 1) return { ms: found[0] };
  const chosen = Number(choices.get(field)?.value);
  return found.includes(chosen) ? { ms: chosen } : { error: repeated() };
}

/** Shows the zone of a field's time, and the choice between two moments. The field may begin with one of them. */
function explain(field, hint) {
  const found = moments(field.value);
  hint.textContent = found?.length === 0 ? skipped() : found?.length === 2 ? repeated() : zone === "UTC" ? zone : `${zone}, ${offsetText(found?.[0] ?? Date.now())}`;
  const before = choices.get(field);
  if (before?.dataset.time === field.value) return;
  before?.closest("label").remove();
  choices.delete(field);
  if (found?.length !== 2) return;
  const label = document.createElement("label");
  const text = document.createElement("span");
  text.textContent = t(`Which ${field.value.slice(11)} is meant`, `指哪一个 ${field.value.slice(11)}`);
  const select = document.createElement("select");
  select.dataset.time = field.value;
  select.append(new Option(t("Choose", "请选择"), ""));
  for (const [n, ms] of found.entries()) {
    select.append(new Option(`${n === 0 ? t("the first", "第一个") : t("the second", "第二个")}, ${offsetText(ms)}`, String(ms), false, ms === Number(field.dataset.ms)));
  }
  label.append(text, select);
  field.closest("label").after(label);
  choices.set(field, select);
}

/** Writes a moment into a field. */
export function setMoment(field, ms) {
  field.dataset.ms = ms;
  field.value = new Date(ms + offsetMs(ms)).toISOString().slice(0, 19);
  field.dispatchEvent(new Event("input", { bubbles: true }));
}

/** Shows moments in the reader's zone. The title keeps what the server wrote, in UTC. */
export function localize(root = document) {
  for (const node of root.querySelectorAll("time[data-local]")) {
    const ms = Date.parse(node.dateTime);
    if (Number.isNaN(ms)) continue;
    node.title = node.textContent;
    node.textContent = formatter.format(ms);
    delete node.dataset.local;
  }
  // A field for a date and time uses the reader's zone, too.
  for (const field of root.querySelectorAll("input[data-kind=time]:not([data-zoned])")) {
    if (field.dataset.ms) setMoment(field, Number(field.dataset.ms));
    field.dataset.zoned = "1";
    const hint = document.createElement("small");
    hint.className = "hint";
    field.after(hint);
    field.addEventListener("input", () => explain(field, hint));
    explain(field, hint);
  }
}
