// Shared by both pages: texts, language, the server's clock, API calls, the session. At the end: the front page itself.

const TEXTS = {
  // Problems, by their `code`.
  "invalid-request": ["The shop could not read this request.", "请求有误，商城无法处理。"],
  "unauthenticated": ["Please sign in first.", "请先登录。"],
  "not-started": ["The sale has not started yet. The button will wake up at the start.", "抢购尚未开始，开始时按钮会自动亮起。"],
  "ended": ["The sale is over.", "本场抢购已结束。"],
  "wrong-key": ["The sale’s key has just changed. Please click again when the button is ready.", "抢购口令刚刚更新，请在按钮亮起后再点一次。"],
  "level-too-low": ["This sale is for members of level {min_level} and above.", "本场仅限 {min_level} 级及以上会员。"],
  "pass-invalid": ["This sale asks for a challenge to be solved first.", "本场需要先完成验证。"],
  "unknown-sale": ["There is no such sale.", "没有这场抢购。"],
  "unknown-order": ["There is no such order.", "没有这个订单。"],
  "not-found": ["There is nothing here.", "内容不存在。"],
  "sold-out": ["Sold out. Unpaid units come back for sale: you may try again.", "已抢光。未付款的商品会重新放出，可稍后再试。"],
  "already-purchased": ["You already have all that one buyer may buy. See your order below.", "您已达到每人限购数量，请看下方订单。"],
  "idempotency-mismatch": ["This click was mixed up with another one. Please click again.", "本次点击与另一次冲突，请再点一次。"],
  "quota-exceeded": ["Too many requests. You can try again in {s} s.", "请求过于频繁，请在 {s} 秒后再试。"],
  "temporarily-unavailable": ["The shop is very busy right now. Please try again shortly.", "商城繁忙，请稍后再试。"],
  "order-not-ready": ["The order is still being created. Try again in a moment.", "订单正在生成，请稍后再试。"],
  "illegal-state": ["The order's status has changed; this is no longer possible.", "订单状态已变化，无法进行此操作。"],
  "no-answer": ["No answer from the shop. Please check your connection.", "商城没有回应，请检查网络。"],
  "other": ["Something went wrong ({code}).", "出错了（{code}）。"],
  // The state of a sale.
  "scheduled": ["Coming up", "即将开始"], "open": ["Open now", "正在抢购"], "paused": ["Paused", "已暂停"],
  "over": ["Ended", "已结束"], "gone": ["Sold out", "已抢光"],
  "starts-in": ["Starts in", "距开始"], "ends-in": ["Ends in", "距结束"],
  "opens-at": ["Opens {at}", "{at} 开始"], "no-sales": ["There are no sales at the moment.", "暂时没有抢购活动。"],
  "days": ["{n} d", "{n} 天"],
};

const [session_, local_] = ["sessionStorage", "localStorage"].map((kind) => {
  const memory = new Map(); // for browsers that refuse storage
  return {
    get(name) { try { return window[kind].getItem(name); } catch { return memory.get(name) ?? null; } },
    set(name, value) {
      try { value === null ? window[kind].removeItem(name) : window[kind].setItem(name, value); } catch { memory.set(name, value); }
    },
  };
});
export const kept = session_;

export const $ = (id) => document.getElementById(id);
export const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
/** `ms`, varied by up to a quarter, so that many open pages do not ask at the same moment. */
export const jitter = (ms) => ms * (0.75 + Math.random() / 2);
/** The ms to wait after this many failures; at least what the answer asks for, up to a minute. */
export const backoff = (answer, fails, maxMs = 10_000) =>
  Math.max(jitter(Math.min(500 * 2 ** fails, maxMs)), Math.min(answer.retryAfterMs ?? 0, 60_000) * (1 + Math.random() / 4));
export const random = () => [...crypto.getRandomValues(new Uint8Array(16))].map((b) => b.toString(16).padStart(2, "0")).join("");
/** Fires the events "language", "session" and "orders" when one of these changes. */
export const changes = new EventTarget();

export function el(tag, className = "", ...children) {
  const node = document.createElement(tag);
  node.className = className;
  node.append(...children);
  return node;
}

/** Sets a text only if it differs, so that nothing is redrawn or announced needlessly. */
export function set(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Language

let lang = local_.get("seckill.lang") ?? ((navigator.language ?? "").toLowerCase().startsWith("zh") ? "zh" : "en");
const locale = () => (lang === "zh" ? "zh-CN" : "en");

export const addTexts = (texts) => Object.assign(TEXTS, texts);
export const knows = (key) => Object.hasOwn(TEXTS, key);
export function t(key, values = {}) {
  return TEXTS[key][lang === "zh" ? 1 : 0].replace(/\{(\w+)\}/g, (_, name) => String(values[name] ?? ""));
}

function translate() {
  document.documentElement.lang = locale();
  for (const node of document.querySelectorAll("[data-en]")) set(node, node.dataset[lang]);
  $("language").textContent = lang === "zh" ? "English" : "中文";
  $("language").lang = lang === "zh" ? "en" : "zh-CN";
  say(...said);
  changes.dispatchEvent(new Event("language"));
}

const currency = document.querySelector("meta[name=currency]").content;
export function money(cents) {
  const format = new Intl.NumberFormat(locale(), { style: "currency", currency, currencyDisplay: "narrowSymbol" });
  return format.format(cents / 10 ** format.resolvedOptions().maximumFractionDigits);
}
export const moment = (ms) => new Intl.DateTimeFormat(locale(), { dateStyle: "medium", timeStyle: "medium" }).format(ms);

/** A duration in parts, rounded up to the second, so that it reaches 0 exactly at the end and not a second before. */
export function parts(ms) {
  const s = Math.max(0, Math.ceil(ms / 1000));
  const two = (n) => String(n).padStart(2, "0");
  return { days: Math.floor(s / 86400), hours: two(Math.floor(s / 3600) % 24), minutes: two(Math.floor(s / 60) % 60), seconds: two(s % 60) };
}
export function span(ms) {
  const { days, hours, minutes, seconds } = parts(ms);
  return `${days ? `${t("days", { n: days })} ` : ""}${days || hours !== "00" ? `${hours}:` : ""}${minutes}:${seconds}`;
}

let said = [];
/** Shows a message in the page's live region. The kind is "good", "bad" or "". */
export function say(key, values, kind = "") {
  said = [key, values, kind];
  $("message").className = kind;
  set($("message"), key ? t(key, values) : "");
}
/** Shows the message for a failed answer. */
export function sayProblem({ code, data, retryAfterMs }) {
  const values = { ...data, code, s: Math.ceil((retryAfterMs ?? 1000) / 1000) };
  say(knows(code) ? code : "other", values, "bad");
}

// The server's clock. It does not depend on the device's clock, and stays steady when that is set.

export const clock = {
  offset: null, // server's time minus performance.now()
  roundTrip: Infinity,
  get ready() { return this.offset !== null; },
  now() { return performance.now() + (this.offset ?? NaN); },
  /** Learns from an answer that carried the server's time. The shortest round trip is the most exact. */
  learn(nowMs, sentAt, gotAt) {
    if (!Number.isFinite(nowMs) || gotAt - sentAt > this.roundTrip) return;
    this.roundTrip = gotAt - sentAt;
    this.offset = nowMs - (sentAt + gotAt) / 2;
  },
  /** Measures again: on a device that slept, the timer may have stopped. */
  async sync(probes = 5) {
    for (let probe = 0, fails = 0; probe < probes && fails < 5;) {
      const answer = await api(`/api/v1/time?r=${random()}`, { timeoutMs: 3000 });
      if (answer.ok) {
        if (probe++ === 0) this.roundTrip = Infinity;
        this.learn(answer.data.now_ms, answer.sentAt, answer.gotAt);
      } else {
        await sleep(backoff(answer, fails++));
      }
      await sleep(jitter(80));
    }
  },
};

/** Calls the API. Never throws: status 0 means that no complete answer came, so the outcome is unknown. */
export async function api(path, { method = "GET", body, headers = {}, token = null, timeoutMs = 8000, parse = JSON.parse } = {}) {
  const abort = new AbortController();
  const timer = setTimeout(() => abort.abort(), timeoutMs);
  if (token) headers = { ...headers, Authorization: `Bearer ${token}` };
  if (body) headers = { ...headers, "Content-Type": "application/json" };
  const sentAt = performance.now();
  try {
    const response = await fetch(path, { method, headers, body: body && JSON.stringify(body), cache: "no-store", signal: abort.signal });
    const text = await response.text();
    const gotAt = performance.now();
    const { ok, status } = response;
    const after = Number.parseFloat(response.headers.get("Retry-After"));
    const retryAfterMs = Number.isFinite(after) ? after * 1000 : null;
    let data = {};
    // A proxy's error page is not JSON. A success that is not JSON was cut off.
    try { data = parse(text); } catch (cut) { if (ok) throw cut; }
    if (status === 401 && token && token === session.token()) session.set(null);
    const byStatus = { 401: "unauthenticated", 404: "not-found", 429: "quota-exceeded" };
    const code = ok ? null : data?.code ?? byStatus[status] ?? (status >= 500 ? "temporarily-unavailable" : `HTTP ${status}`);
    return { ok, status, data, code, retryAfterMs, sentAt, gotAt };
  } catch {
    return { ok: false, status: 0, data: {}, code: "no-answer", retryAfterMs: null };
  } finally {
    clearTimeout(timer);
  }
}

// Jobs: requests that a page repeats. Each run returns the ms until the next one.

const jobs = new Set();
export function job(run, at = Infinity) {
  const made = {
    at, fails: 0, busy: false,
    soon(ms = 0) { this.at = Math.min(this.at, performance.now() + ms); },
    /** The ms until the next run after a failed answer. */
    again(answer) { return backoff(answer, this.fails++); },
    stop() { jobs.delete(this); },
    async turn() {
      this.busy = true;
      this.at = Infinity;
      try { this.soon(await run(this)); } catch (error) { console.error(error); this.soon(5000); }
      this.busy = false;
    },
  };
  jobs.add(made);
  return made;
}
setInterval(() => {
  if (document.hidden) return;
  for (const due of jobs) if (!due.busy && performance.now() >= due.at) due.turn();
}, 100);

/** The buyer's token. A shop with a sign-in of its own stores the token under the same name. */
export const session = {
  token: () => kept.get("seckill.token"),
  set(token) {
    kept.set("seckill.token", token);
    changes.dispatchEvent(new Event("session"));
  },
  user() {
    try {
      return JSON.parse(atob(this.token().split(".")[1].replace(/-/g, "+").replace(/_/g, "/"))).sub;
    } catch {
      return null;
    }
  },
};

$("language").addEventListener("click", () => {
  lang = lang === "zh" ? "en" : "zh";
  local_.set("seckill.lang", lang);
  translate();
});
translate();

// The front page: the list of sales.

const cards = new Map();
const RANK = ["open", "scheduled", "paused", "gone", "over"];
let sales = null;

function standing(sale) {
  const now = clock.now();
  if (sale.status === "ended" || now >= sale.ends_at_ms) return "over";
  if (sale.status === "paused") return "paused";
  if (clock.ready ? now < sale.starts_at_ms : sale.status === "scheduled") return "scheduled";
  return sale.sold_out ? "gone" : "open";
}

function card(sale) {
  const made = { name: el("span", "name"), price: el("span", "price"), badge: el("span", "badge"), when: el("span", "when") };
  const link = el("a", "panel card", made.name, made.price, made.badge, made.when);
  link.href = `/sales/${encodeURIComponent(sale.id)}`;
  made.item = el("li", "", link);
  return made;
}

function draw() {
  if (!sales) return;
  const ranked = sales.map((sale) => [RANK.indexOf(standing(sale)), sale]);
  ranked.sort(([a, x], [b, y]) => a - b || (a < 2 ? 1 : -1) * (x.starts_at_ms - y.starts_at_ms));
  const items = ranked.map(([rank, sale]) => {
    if (!cards.has(sale.id)) cards.set(sale.id, card(sale));
    const { item, name, price, badge, when } = cards.get(sale.id);
    const how = RANK[rank];
    set(name, sale.product.name);
    set(price, money(sale.price_cents));
    set(badge, t(how));
    badge.className = `badge ${how}`;
    const left = sale.starts_at_ms - clock.now();
    set(when, how !== "scheduled" ? "" : left < 86_400_000 ? `${t("starts-in")} ${span(left)}` : t("opens-at", { at: moment(sale.starts_at_ms) }));
    return item;
  });
  const list = $("sales");
  if (items.length !== list.children.length || items.some((item, i) => list.children[i] !== item)) list.replaceChildren(...items);
}

if ($("sales")) {
  changes.addEventListener("language", draw);
  document.addEventListener("visibilitychange", () => document.hidden || clock.sync(2));
  setInterval(draw, 500);
  clock.sync(3);
  job(async (self) => {
    const answer = await api("/api/v1/sales");
    if (answer.ok) sales = answer.data;
    $("sales").setAttribute("aria-busy", String(!sales));
    draw();
    if (!answer.ok) return sayProblem(answer), self.again(answer);
    self.fails = 0;
    say(sales.length ? undefined : "no-sales");
    return jitter(30_000);
  }, 0);
}
