// A sale's page: the countdown, the button, one purchase at a time, and its result.

import { $, addTexts, api, backoff, changes, clock, jitter, job, kept, moment, parts, random, ready, say, sayProblem, session, set, sleep, span, t }
  from "./front.js";
import { drawOrders, held, kind, newestFresh, ordersJob, told, track } from "./orders.js";
import { isOffered, offer } from "./sign-in.js";

addTexts({
  // The button.
  "loading": ["One moment …", "请稍候…"], "before": ["Not yet", "尚未开始"], "opening": ["Opening …", "即将开放…"], "paused": ["Paused", "已暂停"],
  "buy": ["Buy now", "立即抢购"], "asking": ["Asking …", "正在抢购…"], "resting": ["Please wait {rest}", "请稍候 {rest}"], "gone": ["Sold out", "已抢光"],
  "have": ["It is yours", "您已抢到"], "over": ["Ended", "已结束"], "sign-in": ["Sign in to buy", "登录后抢购"],
  "level": ["For level {min_level} and above", "仅限 {min_level} 级及以上"], "check-first": ["First the check", "请先完成验证"],
  // What stands below it.
  "why-before": ["The button becomes active at the start.", "开始时按钮会自动亮起，无需刷新。"],
  "why-sign-in": ["Sign in below, so that you are ready at the start.", "请先在下方登录，做好准备。"],
  "why-check": ["Do the check above, so that you are ready at the start.", "请先完成上方验证，做好准备。"],
  "why-check-first": ["Do the check above: then the button lights up.", "完成上方验证后，按钮即会亮起。"],
  "why-level": ["This sale is for members of level {min_level} and above; yours is {level}.", "本场仅限 {min_level} 级及以上会员，您目前是 {level} 级。"],
  "why-paused": ["The sale is not open just now. This page keeps looking.", "抢购暂未开放，本页会自动刷新状态。"],
  "why-resting": ["After a click, the button pauses for a moment.", "点击一次后，按钮会休息片刻。"],
  "why-asking": ["Your click is on its way. No need to click again.", "请求已发出，无需重复点击。"],
  "why-open": ["One click is enough: you always get a definite answer.", "点一次就够，一定会有明确结果。"],
  "why-gone": ["Units that are not paid for come back. This page keeps looking, and the button lights up when one does.",
    "未付款的商品会重新放出。本页会持续查看，一有库存按钮就会亮起。"],
  "why-wave": ["{units} more units come at {at}. The button lights up by itself.", "{at} 将再放出 {units} 件，届时按钮会自动亮起。"],
  "why-have": ["You hold all that one buyer may.", "您已达到每人限购数量。"],
  "why-lost": ["No connection just now: this is what was last known.", "暂时无法连接，当前显示的是最近一次的状态。"],
  // The timer and the waves.
  "starts-in": ["Starts in", "距开始"], "ends-in": ["Ends in", "距结束"], "wave-in": ["More units in", "距下一批"], "is-over": ["The sale is over", "抢购已结束"],
  "wave": ["{units} more units at {at}", "{at} 再放出 {units} 件"], "wave-left": ["in {left}", "还有 {left}"], "wave-past": ["on sale since then", "已放出"],
  // Messages.
  "soon": ["The sale starts in {s} seconds.", "还有 {s} 秒开抢。"], "go": ["The sale is open. You can buy now!", "开抢了！现在可以购买。"],
  "go-check": ["The sale is open. Do the check, and buy!", "开抢了！请完成验证后购买。"],
  "back": ["Units have come back. You can buy now!", "有库存了！现在可以购买。"],
  "say-asking": ["Your click is on its way …", "请求已发出…"],
  "say-again": ["No answer yet. Asking again for the same purchase …", "暂无回应，正在为同一笔购买再次询问…"],
  "say-gave-up": ["Still no answer. Click again when the button is ready: it asks for the same purchase and cannot buy twice.",
    "仍无回应。请在按钮亮起后再点一次：仍是同一笔购买，不会重复下单。"],
  "done": ["done", "已完成"], "failed": ["failed", "未成功"],
});

const REST_MS = 10_000;
const ATTEMPTS_MAX = 6;
/** The edge gives one answer to all requests within this time, so a state may be this old. */
const SHARED_MS = 100;
/** For this long after a wave's time, the page checks often for its units. */
const WAVE_MS = 8000;

const main = document.querySelector("main");
const [saleId, terms] = [main.dataset.sale, { perUser: Number(main.dataset.perUser), minLevel: Number(main.dataset.minLevel) }];
const sale = { startsAtMs: Number(main.dataset.startsAtMs), endsAtMs: Number(main.dataset.endsAtMs), status: "open" };
const waves = [...document.querySelectorAll("#waves li")].map((item) => ({ item, afterMs: 1000 * item.dataset.afterS, units: item.dataset.units }));
const check = main.dataset.captcha === "none" ? null : await import("./challenge.js");

let state = null; // whether the sale is open, and the key, as of the last answer
let looks = 0; // how often in a row the state was the same
let lost = 0; // how often in a row there was no answer
let missing = false;
let asking = false;
let restUntil = 0;

// The state of the sale

const parseState = (script) => JSON.parse(script.slice(script.indexOf("{"), script.lastIndexOf("}") + 1));

const stateJob = job(async (self) => {
  const answer = await api(`/sales/${saleId}/state.js?r=${random()}`, { timeoutMs: 4000, parse: parseState });
  missing = answer.status === 404 || answer.status === 400;
  if (missing) say("unknown-sale", {}, "bad");
  else if (answer.ok) learn(answer);
  else lost++;
  if (lost && !state) sayProblem(answer);
  draw();
  return missing ? Infinity : answer.ok ? untilAsk() : self.again(answer);
}, 0);

function learn({ data, sentAt, gotAt }) {
  clock.learn(data.now_ms, sentAt - SHARED_MS, gotAt);
  if (lost && !state) say();
  const before = phase();
  state = data;
  Object.assign(sale, { startsAtMs: data.starts_at_ms, endsAtMs: data.ends_at_ms });
  if (data.open) sale.status = "open";
  [stateJob.fails, lost] = [0, 0];
  const now = phase();
  looks = now === before ? looks + 1 : 0;
  if (now === "open" && before !== "open" && before !== "loading" && !asking && held() < terms.perUser) {
    say(before === "gone" ? "back" : check && !check.isDone() ? "go-check" : "go", {}, "good");
  }
  if (now === "opening" && looks > 3) statusJob.soon(jitter(3000));
  if (now === "paused") statusJob.soon(jitter(10_000));
}

/** Asked when the sale should be open but is not: is it paused, or closed for good? */
const statusJob = job(async (self) => {
  const answer = await api(`/api/v1/sales/${saleId}`);
  if (!answer.ok) return answer.status === 404 ? Infinity : self.again(answer);
  self.fails = 0;
  sale.status = answer.data.status;
  return Infinity;
});

function phase() {
  if (!state) return "loading";
  const now = clock.now();
  if (now >= sale.endsAtMs || (sale.status === "ended" && !state.open)) return "over";
  if (now < sale.startsAtMs) return "before";
  if (!state.open) return sale.status === "paused" ? "paused" : "opening";
  return state.sold_out ? "gone" : "open";
}

/** The ms until the state is read again: shortly before the start, at the start with jitter, later now and then. */
function untilAsk() {
  const left = sale.startsAtMs - clock.now();
  switch (phase()) {
    case "over": return Infinity;
    case "before":
      // A sale can be moved while its page stays open for hours.
      if (left > 10_000) return Math.min(left - 3000 - 5000 * Math.random(), jitter(300_000));
      return left + SHARED_MS + 400 * Math.random();
    case "open": return jitter(18_000);
    case "gone": {
      const [next, last] = [nextWave(), lastWave()];
      if (last && clock.now() - last.atMs < WAVE_MS) return jitter(1500);
      return Math.min(jitter(Math.min(4000 * 1.1 ** looks, 12_000)), next ? next.atMs - clock.now() + 600 + 1500 * Math.random() : Infinity);
    }
    default: return jitter(Math.min(300 * 1.6 ** looks, 10_000));
  }
}

const timed = () => waves.map((wave) => ({ ...wave, atMs: sale.startsAtMs + wave.afterMs }));
const nextWave = () => timed().filter(({ atMs }) => atMs > clock.now()).sort((a, b) => a.atMs - b.atMs)[0];
const lastWave = () => timed().filter(({ atMs }) => atMs <= clock.now()).sort((a, b) => b.atMs - a.atMs)[0];

// The button

const tooLow = () => Boolean(session.token()) && session.level() < terms.minLevel;

/** The button's label, the reason below it, and whether a click buys. */
function button() {
  const now = phase();
  if (asking) return ["asking", "why-asking", false];
  if (now === "loading") return ["loading", null, false];
  if (held() >= terms.perUser) return ["have", "why-have", false];
  if (now === "over") return ["over", null, false];
  if (tooLow()) return ["level", "why-level", false];
  if (now === "before") return ["before", whyBefore(), false];
  if (now === "opening") return ["opening", null, false];
  if (now === "paused") return ["paused", "why-paused", false];
  if (now === "gone") return ["gone", nextWave() ? "why-wave" : "why-gone", false];
  if (!session.token()) return ["sign-in", isOffered() ? "why-sign-in" : "unauthenticated", false];
  if (performance.now() < restUntil) return ["resting", "why-resting", false];
  if (check && !check.isDone()) return ["check-first", "why-check-first", false];
  return ["buy", lost > 2 ? "why-lost" : "why-open", true];
}

function whyBefore() {
  if (!session.token()) return isOffered() ? "why-sign-in" : "unauthenticated";
  return check?.isOpen() ? "why-check" : "why-before";
}

/** Values for the texts of button and reason. */
function values() {
  const next = nextWave();
  const rest = restUntil - performance.now();
  return {
    min_level: terms.minLevel, level: session.level(), units: next?.units, at: next && moment(next.atMs),
    rest: rest > 60_000 ? span(rest) : Math.ceil(rest / 1000),
  };
}

$("buy").addEventListener("click", () => {
  const [, why, live] = button();
  if (live) return buy();
  if (why === "unauthenticated" || why === "why-sign-in") return offer();
  if (why) say(why, values());
  if (why === "why-check" || why === "why-check-first") check.focus();
});

// One intent to buy keeps one Idempotency-Key until there is a definite answer, even across reloads.

const slot = () => `seckill.intent.${saleId}.${session.user()}`;
const pending = () => JSON.parse(kept.get(slot()) ?? "null");

async function buy() {
  const [token, place] = [session.token(), slot()];
  const old = pending();
  // An attempt that may have bought is repeated unchanged; otherwise the newest key and pass are used.
  const intent = old?.unsure ? old : { id: old?.id ?? random(), key: state.key, pass: check?.heldPass() ?? undefined, unsure: false };
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
      { method: "POST", token, body: { key: intent.key, pass: intent.pass }, headers: { "Idempotency-Key": intent.id } });
    if (isDefinite(answer) || attempt + 1 >= ATTEMPTS_MAX) break;
    unsure = true;
    say("say-again");
    await sleep(backoff(answer, attempt));
  }
  asking = false;
  if (answer.ok || [400, 403, 404, 409, 422].includes(answer.status)) save(null);
  else if (answer.status === 401 || answer.status === 429) save({ ...intent, unsure });
  if (token !== session.token() && answer.status !== 401) return draw(); // another buyer has signed in meanwhile
  take(answer, intent);
  if (unsure) ordersJob.soon(3000); // an attempt without an answer may still have arrived
  draw();
}

const isDefinite = ({ status }) => status !== 0 && status !== 408 && status < 500;

/** Shows the meaning of the answer to a purchase. */
function take(answer, intent) {
  const { data, code, status } = answer;
  if (answer.ok) {
    check?.dropPass(intent.pass);
    say(told(data), {}, kind(data));
    const { cents, currency } = $("price").dataset;
    const bought = { quantity: 1, amount_cents: Number(cents), currency, created_at_ms: clock.ready ? clock.now() : Date.now() };
    return track({ sale_id: Number(saleId), ...bought, ...data });
  }
  if (!isDefinite(answer)) return say("say-gave-up", {}, "bad");
  sayProblem(answer);
  if (status === 429) restUntil = Math.max(restUntil, performance.now() + (answer.retryAfterMs ?? 0));
  if (code === "pass-invalid") check?.dropPass(intent.pass);
  if (code === "not-started") clock.sync(3);
  if (status === 403) stateJob.soon(jitter(300));
  if (code === "already-purchased") ordersJob.soon();
  if (code === "sold-out" && state) {
    [state.sold_out, looks] = [true, 0];
    stateJob.soon(jitter(4000));
  }
}

/** Repeats a purchase that a reload or the network interrupted, to get its answer. */
function resume() {
  if (session.token() && !asking && pending()?.unsure) buy();
}

// Drawing

const MILESTONES = [60, 10];
let lastLeft = Infinity;
let synced = false;

function draw() {
  check?.draw();
  const [label, why, live] = button();
  const words = values();
  set($("label"), t(label, words));
  set($("why"), why ? t(why, words) : "");
  $("buy").setAttribute("aria-disabled", String(!live));
  $("buy").hidden = missing;
  drawOrders();
  drawSteps();
  for (const [id, ms] of [["opens", sale.startsAtMs], ["closes", sale.endsAtMs]]) {
    if ($(id).dataset.ms === String(ms)) continue;
    $(id).dataset.ms = String(ms);
    set($(id), moment(ms));
  }
  if (missing) $("timer").hidden = true;
  else if (!state) return;
  else drawTimer();
  $("sale").setAttribute("aria-busy", "false");
  ready();
}

function drawTimer() {
  const now = phase();
  const next = now === "gone" ? nextWave() : null;
  $("timer").hidden = now === "over";
  waves.forEach(drawWave);
  set($("phase"), t(now === "over" ? "is-over" : now === "before" ? "starts-in" : next ? "wave-in" : "ends-in"));
  const left = (now === "before" ? sale.startsAtMs : next ? next.atMs : sale.endsAtMs) - clock.now();
  for (const [part, value] of Object.entries(parts(left))) set($(part), String(value));
  $("days-box").hidden = left < 86_400_000;
  if (now !== "before") return;
  // Only milestones are announced; otherwise a screen reader would read the timer every second.
  const passed = MILESTONES.find((s) => left <= s * 1000 && lastLeft > s * 1000);
  if (passed && lastLeft !== Infinity) say("soon", { s: passed });
  lastLeft = left;
  // A signed-in visitor gets the exact time. Other visitors only ask for the state.
  if (!synced && left <= 60_000 && session.token()) {
    synced = true;
    setTimeout(() => clock.sync(3), Math.random() * Math.min(20_000, left / 2));
  }
}

function drawWave({ item, afterMs, units }) {
  const atMs = sale.startsAtMs + afterMs;
  const now = clock.now();
  const isNext = now >= sale.startsAtMs && nextWave()?.item === item;
  const more = atMs <= now ? t("wave-past") : isNext ? t("wave-left", { left: span(atMs - now) }) : "";
  set(item, `${t("wave", { units, at: moment(atMs) })}${more && ` · ${more}`}`);
  item.className = atMs <= now ? "past" : isNext ? "next" : "";
}

/** The steps of the newest purchase, from accepted to yours. */
function drawSteps() {
  const status = newestFresh()?.status;
  const done = { accepted: 1, rejected: 1, pending_payment: 3 }[status];
  $("steps").hidden = done === undefined;
  [...$("steps").children].forEach((item, i) => {
    const failed = i === done && status === "rejected";
    item.className = i < done ? "done" : failed ? "failed" : i === done ? "now" : "";
    if (i === done) item.setAttribute("aria-current", "step");
    else item.removeAttribute("aria-current");
    set(item.lastElementChild, i < done ? t("done") : failed ? t("failed") : "");
  });
}

check?.begin({
  startsAtMs: () => sale.startsAtMs,
  wants() {
    const now = phase();
    if (missing || now === "over" || tooLow() || held() >= terms.perUser) return "no";
    if (now === "loading") return "wait";
    return session.token() ? "yes" : "sign-in";
  },
});
changes.addEventListener("session", () => {
  resume();
  draw();
});
changes.addEventListener("language", draw);
changes.addEventListener("orders", ({ detail }) => {
  if (detail.freed) stateJob.soon(jitter(1500)); // the unit may be for sale again
  draw();
});
addEventListener("online", resume);
document.addEventListener("visibilitychange", () => document.hidden || stateJob.soon(jitter(300)));
resume();
draw();
setInterval(draw, 200);
