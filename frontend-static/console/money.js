// Amounts of money: shown as the server shows them (`show::money`), and read as people type them.

import { t } from "./language.js";

/** Separates groups of three digits: a thin space at which no line is broken. */
const GROUP = "\u202f";

/** The point or comma of decimals is the only separator that an amount may have. */
const AMOUNT = /^(\d+)(?:[.,](\d+))?$/;
/** Groups of three digits, with decimals behind another separator. */
const GROUPED = /^(\d{1,3})(?:([\s.,'’\u066c])\d{3})(?:\2\d{3})*(?:(?!\2)[.,]\d+)?$/;

/** An amount in minor units as text, with its currency and its decimals: `CNY 1 234.00`. */
export function money(cents, { code, digits }) {
  const text = String(cents).padStart(digits + 1, "0");
  const whole = text.slice(0, text.length - digits).replace(/\B(?=(\d{3})+$)/g, GROUP);
  return `${code} ${whole}${digits > 0 ? `.${text.slice(-digits)}` : ""}`;
}

/** Reads an amount. Returns `{ cents }`, or `{ error }` for people. */
export function parseMoney(typed, { code, digits }) {
  // An input method may write digits and points in full width.
  const text = typed.normalize("NFKC").trim();
  const example = digits > 0 ? `129.${"0".repeat(digits)}` : "129";
  const [, whole, decimals = ""] = AMOUNT.exec(text) ?? [];
  const [, , separator] = GROUPED.exec(text) ?? [];
  // 1,299 and 1.299 mean different amounts in different countries: the person decides. With three decimals they are one.
  if (separator !== undefined && (whole === undefined || digits < 3)) {
    const [main, rest = ""] = text.replaceAll(separator, "").split(/[.,]/);
    const plain = digits > 0 ? `${main}.${rest.padEnd(digits, "0").slice(0, digits)}` : main;
    return {
      error: t(`write it without a separator of thousands, such as ${plain}, and with at most ${digits} decimals`,
        `请不要写千位分隔符（例如 ${plain}），小数最多 ${digits} 位`),
    };
  }
  if (whole === undefined) return { error: t(`write an amount such as ${example}`, `请输入金额，例如 ${example}`) };
  if (decimals.length > digits) {
    const most = digits > 0
      ? t(`${code} has ${digits} decimals: write ${example} or the like`, `${code} 有 ${digits} 位小数，请写成 ${example} 的形式`)
      : t(`${code} has no decimals: write a whole number`, `${code} 没有小数，请输入整数`);
    return { error: most };
  }
  const cents = Number(whole + decimals.padEnd(digits, "0"));
  return Number.isSafeInteger(cents) ? { cents } : { error: t("this is too much", "金额过大") };
}
