// A sale's page: the countdown, the button, one purchase at a time, and its result.

import { $, addTexts, api, backoff, changes, clock, el, jitter, job, kept, money, moment, parts, random, say, sayProblem, session, set, sleep, t } from "/static/front.js";
import { drawOrders, held, kind, ordersJob, saleId, told, track } from "/static/orders.js";

addTexts({
  "buy": ["Buy now", "立即抢购"], "retry": ["Sold out · try again", "已抢光 · 再试一次"], "before": ["Not yet", "尚未开始"],
  "resting": ["Please wait", "请稍候"], "asking": ["Asking …", "正在抢购…"], "loading": ["One moment …", "请稍候…"],
  "have": ["It is yours", "您已抢到"], "opening": ["Opening …", "即将开放…"], "sign-in": ["Sign in to buy", "登录后抢购"], "brand": ["Seckill", "秒杀"], "missing": ["Not found", "未找到"],
  "why-before": ["The button wakes up by itself at the start.", "开始时按钮会自动亮起，无需刷新。"],
  "why-sign-in": ["Sign in below, so that you are ready at the start.", "请先在下方登录，做好准备。"],
  "why-paused": ["The sale is not open just now. This page keeps looking.", "抢购暂未开放，本页会自动刷新状态。"],
  "why-resting": ["One click, then the button rests for a moment.", "点击一次后，按钮会休息片刻。"],
  "why-asking": ["Your click is on its way. No need to click again.", "请求已发出，无需重复点击。"],
  "why-open": ["One click is enough: you always get a definite answer.", "点一次就够，一定会有明确结果。"],
  "why-gone": ["Unpaid units come back for sale.", "未付款的商品会重新放出。"],
  "why-have": ["You hold all that one buyer may.", "您已达到每人限购数量。"],
  "per-user": ["{n} per buyer", "每人限购 {n} 件"], "min-level": ["Level {n} and above", "{n} 级及以上会员"],
  "closes-at": ["Closes {at}", "{at} 结束"], "is-over": ["The sale is over", "抢购已结束"],
  "soon": ["The sale starts in {s} seconds.", "还有 {s} 秒开抢。"], "go": ["The sale is open. You can buy now!", "开抢了！现在可以购买。"],
  "say-asking": ["Your click is on its way …", "请求已发出…"],
  "say-again": ["No answer yet. Asking again for the same purchase …", "暂无回应，正在为同一笔购买再次询问…"],
  "say-gave-up": ["Still no answer. Click again when the button is ready: it asks for the same purchase and cannot buy twice.",
    "仍无回应。请在按钮亮起后再点一次：仍是同一笔购买，不会重复下单。"],
});

const REST_MS = 10_000;
const ATTEMPTS_MAX = 6;

let sale = null; // the sale's terms
let state = null; // whether the sale is open, and the key, as of the last answer
let missing = false;
let asking = false;
let restUntil = 0;

const saleJob = job(async (self) => {
  const answer = await api(`/api/v1/sales/${saleId}`);
  missing = answer.status === 404 || answer.status === 400;
  $("sale").setAttribute("aria-busy", "false");
  if (missing) return say("unknown-sale", {}, "bad"), Infinity;
  if (!answer.ok) return sale || sayProblem(answer), self.again(answer);
  if (!sale) say();
  sale = answer.data;
  self.fails = 0;
  if (!state) stateJob.soon(untilAsk(true));
  return Infinity;
}, 0);

const parseState = (script) => JSON.parse(script.slice(script.indexOf("{"), script.lastIndexOf("}") + 1));
const stateJob = job(async (self) => {
  const answer = await api(`/sales/${saleId}/state.js?r=${random()}`, { timeoutMs: 4000, parse: parseState });
  if (!answer.ok) return self.again(answer);
  clock.learn(answer.data.now_ms, answer.sentAt, answer.gotAt);
  const opened = answer.data.open && !state?.open && (state || lastLeft !== Infinity);
  state = answer.data;
  Object.assign(sale, { starts_at_ms: state.starts_at_ms, ends_at_ms: state.ends_at_ms });
  if (opened && !state.sold_out && !asking) say("go", {}, "good");
  self.fails = state.open ? 0 : self.fails + 1;
  draw();
  if (self.fails > 3 && phase() === "opening") saleJob.soon(jitter(3000)); // paused, or closed for good?
  if (phase() === "paused") saleJob.soon(jitter(10_000));
  return untilAsk(false);
});

/** The ms until the state is read again: once shortly before the start, then at the start with jitter, later now and then. */
function untilAsk(first) {
  const left = sale.starts_at_ms - clock.now();
  if (!clock.ready) return jitter(1000);
  if (phase() === "over") return Infinity;
  if (left > 10_000) return left - 3000 - 5000 * Math.random();
  if (left > 0) return first ? 0 : left + 50 + 400 * Math.random();
  if (state?.open) return jitter(18_000);
  return first ? 0 : jitter(Math.min(300 * 1.6 ** stateJob.fails, 10_000));
}

function phase() {
  if (missing || !sale || !clock.ready) return "loading";
  const now = clock.now();
  if (now >= sale.ends_at_ms || (sale.status === "ended" && !state?.open)) return "over";
  if (now < sale.starts_at_ms) return "before";
  if (!state?.open) return sale.status === "paused" ? "paused" : "opening";
  return state.sold_out ? "gone" : "open";
}

// The button

/** The button's label, the reason below it, and whether a click buys. */
function button() {
  const now = phase();
  if (missing) return ["missing", null, false];
  if (asking) return ["asking", "why-asking", false];
  if (now === "loading") return ["loading", null, false];
  if (held() >= sale.per_user) return ["have", "why-have", false];
  if (now === "over") return ["over", null, false];
  if (now === "before") return ["before", session.token() ? "why-before" : $("sign-in").hidden ? "unauthenticated" : "why-sign-in", false];
  if (now === "opening") return ["opening", null, false];
  if (now === "paused") return ["paused", "why-paused", false];
  if (!session.token()) return ["sign-in", "unauthenticated", false];
  if (performance.now() < restUntil) return ["resting", "why-resting", false];
  return now === "gone" ? ["retry", "why-gone", true] : ["buy", "why-open", true];
}

$("buy").addEventListener("click", () => {
  const [, why, live] = button();
  if (live) return buy();
  if (why === "unauthenticated" || why === "why-sign-in") $("sign-in").elements.user.focus();
  if (["unauthenticated", "why-sign-in", "why-before", "why-paused"].includes(why)) say(why);
});

// One intent to buy keeps one Idempotency-Key until a definite answer has come, across reloads as well.

const slot = () => `seckill.intent.${saleId}.${session.user()}`;
const pending = () => JSON.parse(kept.get(slot()) ?? "null");

async function buy() {
  const [token, place] = [session.token(), slot()];
  const old = pending();
  // An attempt that may have bought is repeated unchanged; otherwise the sale's newest key is used.
  const intent = old?.unsure ? old : { id: old?.id ?? random(), key: state.key, unsure: false };
  const save = (value) => kept.set(place, value && JSON.stringify(value));
  let unsure = intent.unsure; // whether an earlier attempt may have bought
  save({ ...intent, unsure: true });
  asking = true;
  restUntil = performance.now() + REST_MS;
  say("say-asking");
  draw();
  let answer;
  for (let attempt = 0; ; attempt++) {
    answer = await api(`/api/v1/sales/${saleId}/purchases`,
      { method: "POST", token, body: { key: intent.key }, headers: { "Idempotency-Key": intent.id } });
    const definite = answer.status !== 0 && answer.status !== 408 && answer.status < 500;
    if (definite || attempt + 1 >= ATTEMPTS_MAX) break;
    unsure = true;
    say("say-again");
    await sleep(backoff(answer, attempt));
  }
  asking = false;
  if (answer.ok || [400, 403, 404, 409, 422].includes(answer.status)) save(null);
  else if (answer.status === 401 || answer.status === 429) save({ ...intent, unsure });
  if (token !== session.token() && answer.status !== 401) return draw(); // another buyer has signed in meanwhile
  if (answer.ok) {
    say(told(answer.data), {}, kind(answer.data));
    track({ sale_id: Number(saleId), quantity: 1, amount_cents: sale?.price_cents ?? 0, created_at_ms: clock.now(), ...answer.data });
  } else if (answer.status === 0 || answer.status === 408 || answer.status >= 500) {
    say("say-gave-up", {}, "bad");
  } else {
    sayProblem(answer);
    if (answer.status === 429) restUntil = Math.max(restUntil, performance.now() + (answer.retryAfterMs ?? 0));
    if (answer.code === "not-started") clock.sync().then(() => stateJob.soon(untilAsk(true)));
    if (answer.status === 403) stateJob.soon(jitter(300));
    if (answer.code === "sold-out" && state) state.sold_out = true;
  }
  if (answer.code === "already-purchased") ordersJob.soon();
  if (unsure) ordersJob.soon(3000); // an attempt without an answer may still have arrived
  draw();
}

// Drawing

const MILESTONES = [60, 10];
let lastLeft = Infinity;

function draw() {
  const [label, why, live] = button();
  const rest = Math.ceil((restUntil - performance.now()) / 1000);
  set($("label"), t(label));
  set($("rest"), label === "resting" ? ` ${rest}` : "");
  set($("why"), why ? t(why) : "");
  $("buy").setAttribute("aria-disabled", String(!live));
  $("buy").classList.toggle("second", label === "retry");
  drawOrders();
  const now = phase();
  $("timer").hidden = now === "over" || missing;
  $("buy").hidden = missing;
  if (missing) set($("product"), t("missing"));
  if (!sale) return;
  set($("product"), sale.product.name);
  const title = `${sale.product.name} · ${t("brand")}`;
  if (document.title !== title) document.title = title;
  set($("price"), money(sale.price_cents));
  const terms = [t("per-user", { n: sale.per_user })];
  if (sale.min_level > 0) terms.push(t("min-level", { n: sale.min_level }));
  terms.push(now === "before" ? t("opens-at", { at: moment(sale.starts_at_ms) }) : t("closes-at", { at: moment(sale.ends_at_ms) }));
  if ($("terms").textContent !== terms.join("")) $("terms").replaceChildren(...terms.map((term) => el("li", "", term)));
  if (now === "loading") return;
  set($("phase"), t(now === "over" ? "is-over" : now === "before" ? "starts-in" : "ends-in"));
  const left = (now === "before" ? sale.starts_at_ms : sale.ends_at_ms) - clock.now();
  for (const [part, value] of Object.entries(parts(left))) set($(part), String(value));
  $("days-box").hidden = left < 86_400_000;
  if (now === "before") {
    const passed = MILESTONES.find((s) => left <= s * 1000 && lastLeft > s * 1000);
    if (passed && lastLeft !== Infinity) say("soon", { s: passed });
    if (passed === 60 && lastLeft !== Infinity) setTimeout(() => clock.sync(3), 20_000 * Math.random());
    lastLeft = left;
  }
}

// Signing in

async function offerSignIn() {
  $("account").hidden = !session.token();
  set($("user"), session.user() ?? "");
  if (session.token() || kept.get("seckill.no-dev")) return void ($("sign-in").hidden = true);
  // Requests a token for a dummy user, to find out whether this is development mode: elsewhere the address does not exist.
  const answer = await api("/api/v1/dev/token", { method: "POST", body: { user: "nobody", level: 0 } });
  if (answer.status === 404) kept.set("seckill.no-dev", "1");
  $("sign-in").hidden = answer.status === 404 || Boolean(session.token());
}

$("sign-in").addEventListener("submit", async (event) => {
  event.preventDefault();
  const { user, level } = event.target.elements;
  const answer = await api("/api/v1/dev/token", { method: "POST", body: { user: user.value.trim(), level: Number(level.value) } });
  if (answer.ok) {
    session.set(answer.data.token);
    say();
    return $("buy").focus();
  }
  if (answer.status === 404) $("sign-in").hidden = true;
  sayProblem(answer);
});

$("sign-out").addEventListener("click", () => {
  session.set(null);
  $("product").focus();
});

changes.addEventListener("session", () => {
  offerSignIn();
  resume();
  draw();
});

/** Repeats a purchase that a reload interrupted, to get its answer. */
function resume() {
  if (session.token() && !asking && pending()?.unsure) buy();
}

const sync = () => clock.sync().then(() => sale && stateJob.soon(untilAsk(true)));
document.addEventListener("visibilitychange", () => document.hidden || sync());
changes.addEventListener("language", draw);
changes.addEventListener("orders", ({ detail }) => {
  if (detail.freed && sale) stateJob.soon(jitter(1500)); // the unit may be for sale again
  draw();
});
offerSignIn();
resume();
sync();
setInterval(draw, 200);
