// Shared by all pages: texts, language, the server's clock, calls of the API, repeated requests, and the session.

const TEXTS = {
  // Problems, by their `code`.
  "invalid-request": ["The shop could not read this request.", "请求有误，商城无法处理。"],
  "unauthenticated": ["Please sign in first.", "请先登录。"],
  "not-started": ["The sale has not started yet. The button wakes up at the start.", "抢购尚未开始，开始时按钮会自动亮起。"],
  "ended": ["The sale is over.", "本场抢购已结束。"],
  "wrong-key": ["The sale’s key has just changed. Please click again when the button is ready.", "抢购口令刚刚更新，请在按钮亮起后再点一次。"],
  "level-too-low": ["This sale is for members of level {min_level} and above.", "本场仅限 {min_level} 级及以上会员。"],
  "not-allowed": ["You cannot buy in this sale. Please ask the shop.", "您无法参加本场抢购，请联系商家。"],
  "pass-invalid": ["The check before the purchase is missing or no longer valid. Please do it again.", "购买前的验证缺失或已失效，请重新完成验证。"],
  "challenge-failed": ["That was not right.", "验证未通过。"],
  "no-challenge": ["This sale needs no check.", "本场无需验证。"],
  "unknown-sale": ["There is no such sale.", "没有这场抢购。"],
  "unknown-order": ["There is no such order.", "没有这个订单。"],
  "not-found": ["There is nothing here.", "内容不存在。"],
  "sold-out": ["Sold out for now. Units that are not paid for come back: the button lights up again when they do.",
    "暂时抢光。未付款的商品会重新放出，届时按钮会再次亮起。"],
  "already-purchased": ["You already have all that one buyer may buy. See your order below.", "您已达到每人限购数量，请看下方订单。"],
  "idempotency-mismatch": ["This click was mixed up with another one. Please click again.", "本次点击与另一次冲突，请再点一次。"],
  "quota-exceeded": ["Too many requests. You can try again in {s} s.", "请求过于频繁，请在 {s} 秒后再试。"],
  "lapsed-holds": ["You reserved several times and did not pay in time. You can reserve again in {left}.", "您多次抢到后未按时付款，请在 {left} 后再抢。"],
  "too-slow": ["The request reached the shop too slowly. Please try again.", "请求传输超时，请再试一次。"],
  "body-too-large": ["The request was too large.", "请求内容过大。"],
  "temporarily-unavailable": ["The shop is very busy right now. Please try again shortly.", "商城繁忙，请稍后再试。"],
  "order-not-ready": ["The order is still being written. Try again in a moment.", "订单正在生成，请稍后再试。"],
  "illegal-state": ["The order’s status has changed; this is no longer possible.", "订单状态已变化，无法进行此操作。"],
  "no-answer": ["No answer from the shop. Please check your connection.", "商城没有回应，请检查网络。"],
  "other": ["Something went wrong ({code}).", "出错了（{code}）。"],
  "offline": ["You are offline. This page goes on by itself when the connection is back.", "网络已断开，恢复后本页会自动继续。"],
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
/** The ms to wait after this many failures; at least the time that the answer asks for, up to a minute. */
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

/** Sets a text only if it differs, so that nothing is redrawn or announced without need. */
export function set(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Reports that the page's script has started and has drawn its first state. */
export function ready() {
  document.documentElement.dataset.ready = "1";
}

// Language

let lang = local_.get("seckill.lang") ?? ((navigator.language ?? "").toLowerCase().startsWith("zh") ? "zh" : "en");
export const isChinese = () => lang === "zh";
const locale = () => (lang === "zh" ? "zh-CN" : "en");

export const addTexts = (texts) => Object.assign(TEXTS, texts);
export const knows = (key) => Object.hasOwn(TEXTS, key);
export function t(key, values = {}) {
  return TEXTS[key][lang === "zh" ? 1 : 0].replace(/\{(\w+)\}/g, (_, name) => {
    const value = values[name];
    return String((typeof value === "function" ? value() : value) ?? "");
  });
}

function translate() {
  document.documentElement.lang = locale();
  for (const node of document.querySelectorAll("[data-en]")) set(node, node.dataset[lang]);
  for (const node of document.querySelectorAll("[data-cents]")) set(node, money(Number(node.dataset.cents), node.dataset.currency));
  for (const node of document.querySelectorAll("time[data-ms]")) set(node, moment(Number(node.dataset.ms)));
  set($("language"), lang === "zh" ? "English" : "中文");
  $("language").lang = lang === "zh" ? "en" : "zh-CN";
  drawMessage();
  changes.dispatchEvent(new Event("language"));
}

const formatters = new Map();
/** Formatters are costly to make, and the pages draw several times a second. */
function formatter(Type, options) {
  const key = `${locale()} ${JSON.stringify(options)}`;
  if (!formatters.has(key)) formatters.set(key, new Type(locale(), options));
  return formatters.get(key);
}

const digitsOf = Object.fromEntries(
  document.querySelector("meta[name=digits]").content.split(" ").map((one) => [one.slice(0, 3), Number(one.slice(3))]));
/** An amount of minor units. Their number is given: browsers know another one than ISO 4217 for some currencies. */
export function money(cents, currency) {
  const digits = digitsOf[currency] ?? 2;
  const options = { style: "currency", currency, minimumFractionDigits: digits, maximumFractionDigits: digits };
  return formatter(Intl.NumberFormat, options).format(cents / 10 ** digits);
}
/** A moment in the reader's own zone, with the zone's name. */
export const moment = (ms) => formatter(Intl.DateTimeFormat, { dateStyle: "medium", timeStyle: "long" }).format(ms);
export const timeOfDay = (ms) => formatter(Intl.DateTimeFormat, { timeStyle: "medium" }).format(ms);

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

// Messages. A message holds in the state in which it was said, and disappears with it.

let note = null;
/** What a message depends on, and what is shown when `note` was said last. The page of a sale has more to say than the others. */
export const messages = {
  standing: () => session.user(),
  shown: (said) => (said?.of === messages.standing() && performance.now() < said.until ? said : null),
};
/** Shows a message in the page's live region. The kind is "good", "bad" or "". */
export function say(key, values = {}, kind = "", forMs = Infinity) {
  note = key ? { key, values, kind, of: messages.standing(), until: performance.now() + forMs } : null;
  drawMessage();
}
export function drawMessage() {
  if (!$("message")) return;
  const message = navigator.onLine ? messages.shown(note) : { key: "offline", kind: "bad" };
  const kind = message?.kind ?? "";
  if ($("message").className !== kind) $("message").className = kind;
  set($("message"), message ? t(message.key, message.values) : "");
}
/** Tells a screen reader what is seen elsewhere. */
export const announce = (key) => set($("announced"), t(key));
/** The text of a failed answer: its key and its values. */
export function problem({ code, data, retryAfterMs }) {
  const waitMs = retryAfterMs ?? 1000;
  return [knows(code) ? code : "other", { ...data, code, s: Math.ceil(waitMs / 1000), left: span(waitMs) }];
}
/** Shows a failed answer, until the time that it asks to wait for. */
export const sayProblem = (answer) => say(...problem(answer), "bad", answer.retryAfterMs ?? Infinity);

// The server's clock. It does not depend on the device's clock, and stays steady when that one is set.

/** The greatest drift of a device's clock, as a part of the elapsed time. */
const DRIFT = 1e-4;
/** The clocks of two instances may differ by this. */
const TOLERANCE_MS = 1;

export const clock = {
  bounds: null, // between which the server's time minus performance.now() lies
  learntAt: 0,
  get ready() { return this.bounds !== null; },
  now() { return performance.now() + (this.bounds ? (this.bounds[0] + this.bounds[1]) / 2 : NaN); },
  /** Takes a server's time that was read between `from` and `to`. Each answer narrows the bounds; they widen by the drift. */
  learn(serverMs, from, to) {
    if (!Number.isFinite(serverMs)) return;
    const news = [serverMs - to, serverMs - from];
    const wider = TOLERANCE_MS + (to - this.learntAt) * DRIFT;
    const both = this.bounds && [Math.max(this.bounds[0] - wider, news[0]), Math.min(this.bounds[1] + wider, news[1])];
    // Contradicting bounds: this device's timer stopped for a while, or was set.
    this.bounds = both && both[0] <= both[1] ? both : news;
    this.learntAt = to;
  },
  /** Asks for the time several times. */
  async sync(probes) {
    for (let probe = 0, fails = 0; probe < probes && fails < 5;) {
      const answer = await api(`/api/v1/time?r=${random()}`, { timeoutMs: 3000 });
      if (answer.ok) this.learn(answer.data.now_ms, answer.sentAt, answer.gotAt), probe++;
      else await sleep(backoff(answer, fails++));
      await sleep(jitter(80));
    }
  },
};

// Calls of the API

/** The API's origin; empty when it is the page's own. */
const base = document.querySelector("meta[name=api]").content;

const headersOf = (token, more) => ({ ...(token && { Authorization: `Bearer ${token}` }), ...more });

/** Calls the API. Never throws: status 0 means that no complete answer came, so the outcome is unknown. */
export async function api(path, { method = "GET", body, headers = {}, token = null, timeoutMs = 8000, parse = JSON.parse } = {}) {
  const abort = new AbortController();
  const timer = setTimeout(() => abort.abort(), timeoutMs);
  if (body) headers = { ...headers, "Content-Type": "application/json" };
  const sentAt = performance.now();
  try {
    const response = await fetch(base + path,
      { method, headers: headersOf(token, headers), body: body && JSON.stringify(body), cache: "no-store", signal: abort.signal });
    const text = await response.text();
    const gotAt = performance.now();
    let data = {};
    // A proxy's error page is not JSON. A successful answer that is not JSON was truncated.
    try { data = parse(text); } catch (cut) { if (response.ok) throw cut; }
    return { ...outcome(response, data, token), data, sentAt, gotAt, next: nextPage(response) };
  } catch {
    return noAnswer();
  } finally {
    clearTimeout(timer);
  }
}

/** The path of the next page, from the `Link` header. */
const nextPage = (response) => response.headers.get("Link")?.match(/<(\/[^>]*)>;\s*rel="next"/)?.[1] ?? null;
const noAnswer = () => ({ ok: false, status: 0, data: {}, code: "no-answer", retryAfterMs: null });

/** The wait that an answer asks for, as seconds or as a date. Proxies send dates. */
function retryAfterMs(headers) {
  const after = headers.get("Retry-After");
  if (/^\d+$/.test(after)) return Number(after) * 1000;
  const until = after?.endsWith("GMT") ? Date.parse(after) : Number.NaN;
  const waitMs = until - (Date.parse(headers.get("Date")) || Date.now());
  return Number.isFinite(waitMs) ? Math.max(waitMs, 0) : null;
}

function outcome(response, data, token) {
  const { ok, status } = response;
  if (status === 401 && token && token === session.token()) session.set(null);
  const byStatus = { 401: "unauthenticated", 404: "not-found", 408: "too-slow", 413: "body-too-large", 429: "quota-exceeded" };
  let code = ok ? null : data?.code ?? byStatus[status] ?? (status >= 500 ? "temporarily-unavailable" : `HTTP ${status}`);
  if (status === 429 && response.headers.get("RateLimit-Policy")?.startsWith("\"lapsed-holds\"")) code = "lapsed-holds";
  return { ok, status, code, data, retryAfterMs: retryAfterMs(response.headers) };
}

/** An event stream that is silent for this long counts as dead: the service sends a comment every 15 s. */
const SILENCE_MAX_MS = 40_000;
/** A longer line of an event stream is not from our service. */
const LINE_MAX = 65_536;

/**
 * Reads server-sent events with the buyer's token until the stream ends or `abort` is used. Answers like `api`; `retryMs` is the
 * pause that the service asks for before the next attempt.
 */
export async function stream(path, { token, lastId, abort, onOpen, onEvent }) {
  let retryMs = null;
  let timer;
  const awake = (ms) => { clearTimeout(timer); timer = setTimeout(() => abort.abort(), ms); };
  // Another origin may not allow this header. Without it the stream begins with the present status, which is enough.
  const more = { Accept: "text/event-stream", ...(lastId && !base && { "Last-Event-ID": lastId }) };
  try {
    awake(8000);
    const response = await fetch(base + path, { headers: headersOf(token, more), cache: "no-store", signal: abort.signal });
    if (response.status !== 200) return outcome(response, await response.json().catch(() => ({})), token);
    onOpen();
    const parse = sseParser(onEvent, (ms) => { retryMs = ms; });
    const decoder = new TextDecoder();
    const reader = response.body.getReader();
    for (;;) {
      awake(SILENCE_MAX_MS);
      const { done, value } = await reader.read();
      if (done) return { ok: true, status: 200, retryMs };
      parse(decoder.decode(value, { stream: true }));
    }
  } catch {
    return { ...noAnswer(), retryMs };
  } finally {
    clearTimeout(timer);
    abort.abort(); // a stream that was left in the middle is closed
  }
}

/** Makes a function that takes the text of an event stream in pieces, and calls back for each whole event. */
function sseParser(onEvent, onRetry) {
  let rest = "";
  let event = { type: "message", data: [] };
  let id = null; // stays for the events that follow
  const line = (text) => {
    if (text === "") {
      if (event.data.length) onEvent({ type: event.type, data: event.data.join("\n"), id });
      event = { type: "message", data: [] };
      return;
    }
    const [, field, value] = text.match(/^([^:]*)(?:: ?([^]*))?$/);
    if (field === "event") event.type = value;
    else if (field === "data") event.data.push(value ?? "");
    else if (field === "id") id = value;
    else if (field === "retry" && /^\d+$/.test(value)) onRetry(Number(value));
  };
  return (text) => {
    const lines = (rest + text).split(/\r?\n/);
    rest = lines.pop();
    if (rest.length > LINE_MAX) throw new Error("the line does not end");
    lines.forEach(line);
  };
}

// Jobs: requests that a page repeats. Each run returns the ms until the next one.

const jobs = new Set();
/** Later runs are found by looking, up to a tenth of a second late. */
const PRECISE_MS = 10_000;
export function job(run, at = Infinity) {
  const made = {
    at, fails: 0, busy: false,
    soon(ms = 0) {
      this.at = Math.min(this.at, performance.now() + ms);
      if (ms < PRECISE_MS) setTimeout(turnDue, ms);
    },
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
function turnDue() {
  if (document.hidden) return;
  for (const due of jobs) if (!due.busy && performance.now() >= due.at) due.turn();
}
setInterval(turnDue, 100);
setInterval(drawMessage, 500);

addEventListener("offline", drawMessage);
addEventListener("online", () => {
  drawMessage();
  for (const failed of jobs) if (failed.fails) failed.soon(jitter(500));
});

const [idClaim, levelClaim] = ["id", "level"].map((claim) => document.querySelector(`meta[name=${claim}-claim]`).content);

const TOKEN = "seckill.token";
/** A token that was only renewed is no other session: nothing that the page knows is lost. */
function sessionChanged() {
  if (session.who() === who) return;
  who = session.who();
  changes.dispatchEvent(new Event("session"));
}
/** The buyer's token, for all tabs. A shop with a sign-in of its own stores the token under the same name. */
export const session = {
  token: () => local_.get(TOKEN),
  set(token) {
    local_.set(TOKEN, token);
    sessionChanged();
  },
  claims() {
    try {
      const bytes = atob(this.token().split(".")[1].replace(/-/g, "+").replace(/_/g, "/"));
      return JSON.parse(new TextDecoder().decode(Uint8Array.from(bytes, (byte) => byte.charCodeAt(0))));
    } catch {
      return {};
    }
  },
  user() { return this.claims()[idClaim] ?? null; },
  level() { return this.claims()[levelClaim] ?? 0; },
  /** Who has signed in, for comparisons; null if nobody has. */
  who() { return this.token() && JSON.stringify([this.user() ?? this.token(), this.level()]); },
};
let who = session.who();

// Another tab has signed in or out. The key is null when all was removed.
addEventListener("storage", ({ key }) => (key === TOKEN || key === null) && sessionChanged());
changes.addEventListener("session", drawMessage);

$("language").addEventListener("click", () => {
  lang = lang === "zh" ? "en" : "zh";
  local_.set("seckill.lang", lang);
  translate();
});
translate();
