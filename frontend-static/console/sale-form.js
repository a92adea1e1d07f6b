// The form of a sale: planning one, a draft, a copy, and changing one. It shows a preview before anything is sent.

import { ask, call, preparations, say } from "./console.js";
import { FieldErrors, currencyOf, labelOf, read, replace } from "./fields.js";
import { duration, t } from "./language.js";
import { money } from "./money.js";
import { inUtc, inZone, momentOf, setMoment } from "./times.js";

const WAVES_MAX = 100;
const HOUR_MS = 3_600_000;
const MINUTE_MS = 60_000;
const DAY_MS = 86_400_000;
/** A price that differs from the last one by this factor is probably a wrong point. */
const UNLIKELY = 100;

const form = document.querySelector("#sale-form");
const fields = form.elements;
const isChange = form.dataset.method === "PATCH";

// The rows of waves, which the form sends as one field

const list = document.querySelector("#waves");
const add = document.querySelector("#add-wave");

/** Writes the rows into the field. An incomplete row is no wave; the form says so when it is sent. */
function write() {
  const waves = [...list.children].flatMap((row) => {
    const [after, units] = [".after", ".units"].map((name) => row.querySelector(name));
    if (after.value === "" || units.value === "") return [];
    return [{ after_s: Math.round(Number(after.value) * 60), units: Number(units.value) }];
  });
  fields.waves.value = waves.length > 0 || isChange ? JSON.stringify(waves) : "";
  add.disabled = list.children.length >= WAVES_MAX;
}

function addWave({ after_s, units } = {}) {
  list.append(document.querySelector("#wave").content.cloneNode(true));
  const row = list.lastElementChild;
  if (units !== undefined) {
    row.querySelector(".after").value = after_s / 60;
    row.querySelector(".units").value = units;
  }
  return row;
}

add.addEventListener("click", () => {
  addWave().querySelector("input").focus();
  write();
});
list.addEventListener("input", write);
list.addEventListener("click", (event) => {
  if (!event.target.matches(".remove")) return;
  event.target.closest("li").remove();
  add.focus();
  write();
});

// The form's fields as texts: drafts and copies have them

function typed() {
  const named = [...fields].filter(({ name, type }) => name && name !== "draft_id" && type !== "submit");
  return named.map((field) => {
    const { name, type, value } = field;
    if (type === "checkbox") return { name, text: String(field.checked) };
    // A moment, because another person may open the draft in another zone.
    if (field.dataset.kind === "time") return { name, text: String(momentOf(field).ms ?? "") };
    return { name, text: value };
  });
}

function fill(texts) {
  for (const { name, text } of texts) {
    const field = fields[name];
    if (!field || name === "waves") continue;
    if (field.type === "checkbox") field.checked = text === "true";
    else if (field.dataset.kind !== "time") field.value = text;
    else if (text !== "") setMoment(field, Number(text));
  }
  const waves = texts.find(({ name }) => name === "waves")?.text;
  for (const wave of JSON.parse(waves || "[]")) addWave(wave);
  if (fields.unlimited.checked) replace(fields.unlimited);
}

document.querySelector("#save-draft")?.addEventListener("click", async () => {
  const id = fields.draft_id?.value;
  const values = { product: fields.product.value.trim(), form: typed() };
  const done = await call(id ? "PUT" : "POST", `/api/v1/admin/drafts${id ? `/${id}` : ""}`, { values });
  if (done?.ok && !id) location.assign(`/admin/sales/new?draft=${done.answer.draft_id}`);
  else if (done) say(form, done.ok ? t("The draft is saved.", "草稿已保存。") : done.text, done.ok ? "good" : "bad");
});

// The preview

/** The newest sale of the same product in the same currency, for comparison. */
async function lastSale(product, currency) {
  const done = await call("GET", `/api/v1/admin/sales?limit=100&q=${encodeURIComponent(product)}`);
  return done?.ok ? done.answer.sales.find((sale) => sale.product === product && sale.currency === currency) : undefined;
}

/** What is probably wrong with the terms, for people. */
function warnings(terms, last, currency) {
  const lasts = terms.ends_at_ms - terms.starts_at_ms;
  const isNew = !isChange;
  return [
    [isNew && terms.hasStart && terms.starts_at_ms < Date.now(), () => t("The start is in the past: the sale opens at once.", "开始时间已过：抢购将立即开始。")],
    [terms.price_cents === 0, () => t("The price is 0: the units are given away.", "价格为 0：商品将免费送出。")],
    [lasts < MINUTE_MS, () => t("The sale lasts less than a minute.", "抢购时间不足一分钟。")],
    [lasts > 30 * DAY_MS, () => t("The sale lasts more than 30 days.", "抢购时间超过 30 天。")],
    [isNew && last && terms.price_cents > 0 && (terms.price_cents * UNLIKELY <= last.price_cents || terms.price_cents >= last.price_cents * UNLIKELY),
      () => t(`The price of the product’s last sale was ${money(last.price_cents, currency)}.`, `该商品上一场抢购的价格是 ${money(last.price_cents, currency)}。`)],
  ].filter(([isSo]) => isSo).map(([, text]) => text());
}

const element = (name, className, ...content) => {
  const node = document.createElement(name);
  if (className) node.className = className;
  node.append(...content);
  return node;
};

/** In the reader's zone, and in UTC if that is another one. */
function when(ms) {
  const [here, utc] = [inZone(ms), inUtc(ms)];
  return here === utc ? [here] : [here, element("br", ""), element("span", "hint", utc)];
}

function summary(terms, currency) {
  const { stock, per_user: most } = terms;
  const units = stock < 0 ? t("units without limit", "不限量") : t(`${stock} units`, `${stock} 件`);
  const waves = terms.waves.map(({ after_s, units }) =>
    t(`${units} units ${duration(after_s)} after the start`, `开始后 ${duration(after_s)}：${units} 件`));
  const lines = [
    [labelOf(fields.product), terms.product],
    [t("For sale", "出售"), `${money(terms.price_cents, currency)}, ${units}, ${t(`at most ${most} a buyer`, `每人限购 ${most} 件`)}`],
    [t("Starts", "开始"), ...(terms.hasStart ? when(terms.starts_at_ms) : [t("at once", "立即")])],
    [t("Ends", "结束"), ...when(terms.ends_at_ms)],
    [t("Lasts", "时长"), duration(Math.round((terms.ends_at_ms - terms.starts_at_ms) / 1000))],
    [t("Time to pay", "付款时限"), duration(terms.pay_within_s)],
    ...(waves.length > 0 ? [[t("Waves", "批次"), waves.join("; ")]] : []),
    ...(terms.min_level > 0 ? [[t("Buyers", "买家"), t(`level ${terms.min_level} or above`, `${terms.min_level} 级及以上`)]] : []),
    [labelOf(fields.captcha), fields.captcha.selectedOptions[0].textContent],
  ];
  return element("dl", "facts", ...lines.flatMap(([name, ...content]) => [element("dt", "", name), element("dd", "", ...content)]));
}

/** The values of all fields, also of those that cannot be changed any more. */
function whole() {
  const locked = [...form.querySelectorAll("fieldset[disabled], :is(select, input)[disabled]")].filter((one) => one.name !== "stock");
  for (const one of locked) one.disabled = false;
  try {
    return read(form).values;
  } finally {
    for (const one of locked) one.disabled = true;
  }
}

/** Asks with a preview. Returns what is sent: all terms of a new sale, and of a change only what differs. */
async function preview(values) {
  const sent = isChange ? Object.fromEntries(Object.entries(values).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(before[name]))) : values;
  if (isChange && Object.keys(sent).length === 0) {
    throw new FieldErrors([[fields.ends_at_ms, t("nothing has been changed", "没有任何更改")]]);
  }
  const shown = isChange ? whole() : values;
  const starts = shown.starts_at_ms ?? Date.now();
  const terms = { waves: [], ...shown, hasStart: "starts_at_ms" in shown, starts_at_ms: starts, ends_at_ms: shown.ends_at_ms ?? starts + HOUR_MS };
  if (terms.ends_at_ms <= starts) {
    throw new FieldErrors([[fields.ends_at_ms, t("the end must be later than the start", "结束时间必须晚于开始时间")]]);
  }
  const currency = currencyOf(fields.price_cents);
  const last = await lastSale(terms.product, currency.code);
  const told = warnings(terms, last, currency).map((text) => element("p", "notice bad", text));
  const [question, yes] = isChange
    ? [t("Change the sale?", "更改这场抢购？"), t("Change", "更改")]
    : [t("Publish this sale?", "发布这场抢购？"), t("Publish", "发布")];
  const agreed = await ask(question, { yes, no: t("Back to the form", "返回修改") }, summary(terms, currency), ...told);
  return agreed ? sent : null;
}

fill(JSON.parse(form.dataset.texts));
// A browser may restore the field from an earlier visit, but not the rows.
write();
const before = isChange ? read(form).values : {};
preparations.set(form, preview);
