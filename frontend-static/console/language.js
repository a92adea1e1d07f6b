// The language of the page. Each text stands in both languages at its place; crates/backoffice/src/console/language.rs does the same.

const { lang } = document.documentElement;
const isChinese = lang.startsWith("zh");

export const t = (en, zh) => (isChinese ? zh : en);

/** For dates: as the reader's region writes them, if the region speaks the page's language. */
export const locale = navigator.languages.find((one) => one.slice(0, 2) === lang.slice(0, 2)) ?? lang;

/** The titles of problems by code; empty where the API's own are in the page's language. */
const problems = JSON.parse(document.querySelector("meta[name=problems]")?.content || "{}");

/** What a problem of the API says to a person. */
export function told({ code, title, detail }, status) {
  const known = problems[code];
  if (known) return detail ? `${known}：${detail}` : `${known}。`;
  return detail ?? title ?? t(`The service answered ${status}.`, `服务返回了 ${status}。`);
}

/** A duration as people say it: `45 s`, `3 min 5 s`, `2 h 10 min`, `4 d 1 h`. */
export function duration(seconds) {
  const units = [[86_400, t("d", "天")], [3600, t("h", "小时")], [60, t("min", "分钟")], [1, t("s", "秒")]];
  const first = Math.max(units.findIndex(([size]) => seconds >= size), 0);
  const [[size, unit], [nextSize, nextUnit] = [Infinity]] = units.slice(seconds >= 1 ? first : 3);
  const rest = Math.floor((seconds % size) / nextSize);
  return `${Math.floor(seconds / size)} ${unit}${rest > 0 ? ` ${rest} ${nextUnit}` : ""}`;
}

// The switch in the head of the page. The server renders the page in the language that the cookie names.
document.getElementById("language")?.addEventListener("click", ({ currentTarget }) => {
  const secure = location.protocol === "https:" ? "; secure" : "";
  document.cookie = `seckill_language=${currentTarget.value}; path=/; max-age=31536000; samesite=lax${secure}`;
  location.reload();
});
