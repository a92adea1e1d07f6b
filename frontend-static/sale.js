// A sale's page: reads the sale's state, buys, and draws what page-state.js finds.

import { $, api, backoff, changes, clock, drawMessage, jitter, job, kept, messages, moment, money, parts, random, ready, say, sayProblem, session, set,
  sleep, span, t } from "./front.js";
import { drawOrders } from "./order-list.js";
import { channels, facts, ordersJob, track, whyFailed } from "./orders.js";
import { SHARED_MS, nextWave, phaseOf, shown, standing, untilAsk } from "./page-state.js";
import { drawPayNow } from "./pay-now.js";
import { calendar } from "./reminder.js";
import { isOffered, offer } from "./sign-in.js";
import "./sale-texts.js";

const REST_MS = 10_000;
const ATTEMPTS_MAX = 6;
/** The terms for which the page has loaded itself again, and when; and how long it then waits before it does so again. */
const RELOADED = "seckill.reloaded";
const RELOAD_MS = 60_000;

const main = document.querySelector("main");
const saleId = main.dataset.sale;
const waves = [...document.querySelectorAll("#waves li")].map((item) => ({ item, afterMs: 1000 * item.dataset.afterS, units: item.dataset.units }));
const check = main.dataset.captcha === "none" ? null : await import("./challenge.js");

let state = null; // the last answer of state.js
let looks = 0; // how often in a row the phase was the same
let lost = 0; // how often in a row there was no answer
let missing = false;
let [phase, from, since] = ["loading", null, 0];
let click = null;
let restUntil = 0;
let quantity = 1;
let wantsMore = false;

/** All that is known, for page-state.js. */
const world = (note = null) => ({
  now: clock.now(), tick: performance.now(), state, lost, missing, from, since, offline: !navigator.onLine,
  isOutdated: Boolean(state && state.terms !== main.dataset.terms),
  perUser: Number(main.dataset.perUser), minLevel: Number(main.dataset.minLevel), waves: timed(),
  user: session.token() ? session.user() : null, level: session.level(), offersSignIn: isOffered(),
  check: !check ? "none" : check.isDone() ? "done" : check.isOpen() ? "open" : "closed",
  orders: facts(), canPay: channels.length > 0, click, restUntil, wantsMore, note,
});

messages.standing = () => standing(world());
messages.shown = (note) => {
  const message = shown(world(note)).message;
  return message && { ...message, values: { ...message.values, reason: () => whyFailed(message.reason) } };
};

// The state of the sale

const parseState = (script) => JSON.parse(script.slice(script.indexOf("{"), script.lastIndexOf("}") + 1));

const stateJob = job(async (self) => {
  const answer = await api(`/sales/${saleId}/state.js?r=${random()}`, { timeoutMs: 4000, parse: parseState });
  missing = answer.status === 404 || answer.status === 400;
  if (answer.ok) learn(answer, self);
  else if (!missing) lost++;
  if (lost && !state) sayProblem(answer);
  draw();
  return answer.ok || missing ? untilAsk(world(), looks, Math.random()) : self.again(answer);
}, 0);

function learn({ data, sentAt, gotAt }, self) {
  clock.learn(data.now_ms, sentAt - SHARED_MS, gotAt);
  [state, self.fails, lost] = [data, 0, 0];
  if (!enter()) looks++;
  if (data.terms === main.dataset.terms) termsJob.fails = 0;
  else if (termsJob.at === Infinity && !termsJob.busy) termsJob.soon(jitter(600));
}

/** Notes a new phase. */
function enter() {
  const now = phaseOf({ missing, state, now: clock.now() });
  if (now === phase) return false;
  [phase, from, since, looks] = [now, phase, performance.now(), 0];
  return true;
}

/** The page shows other terms than the sale has. It is loaded again once the new page is there: a published one may come late. */
const termsJob = job(async (self) => {
  if (state.terms === main.dataset.terms) return Infinity;
  const isBusy = () => click || check?.isBusy() || facts().some(({ isPaying }) => isPaying);
  if (isBusy()) return 1000;
  const page = await fetch(location.href, { cache: "no-cache" }).then((answer) => answer.text()).catch(() => "");
  // Another server of the edge may still have the old page: then this one loads itself again only after a while.
  const [terms, atMs] = (kept.get(RELOADED) ?? "").split(" ");
  const isNew = terms !== state.terms || Date.now() - Number(atMs) > RELOAD_MS;
  if (page.includes(`data-terms="${state.terms}"`) && isNew && !isBusy()) {
    kept.set(RELOADED, `${state.terms} ${Date.now()}`);
    location.reload();
  }
  return jitter(Math.min(1000 * 2 ** self.fails++, RELOAD_MS));
});

const timed = () => waves.map((wave) => ({ ...wave, atMs: (state?.starts_at_ms ?? Number(main.dataset.startsAtMs)) + wave.afterMs }));

// The button

/** Values for the texts of button and reason. */
function values() {
  const next = nextWave({ waves: timed(), now: clock.now() });
  const rest = restUntil - performance.now();
  return {
    min_level: main.dataset.minLevel, level: session.level(), units: next?.units, at: next && moment(next.atMs),
    rest: rest > 60_000 ? span(rest) : Math.ceil(rest / 1000),
  };
}

$("buy").addEventListener("click", () => {
  const { button } = shown(world());
  if (button.isLive) return buy();
  if (button.label === "more") wantsMore = true;
  if (button.why === "unauthenticated" || button.why === "why-sign-in") return offer();
  draw();
  if (button.why) say(button.why, values());
  if (button.why === "why-check" || button.why === "why-check-first") check.focus();
});

for (const [id, step] of [["fewer", -1], ["several", 1]]) {
  $(id).addEventListener("click", () => {
    quantity = Math.min(Math.max(quantity + step, 1), shown(world()).quantityMax);
    draw();
  });
}

// One intent to buy keeps one Idempotency-Key until there is a definite answer, even across reloads.

const slot = () => `seckill.intent.${saleId}.${session.user()}`;
const pending = () => JSON.parse(kept.get(slot()) ?? "null");

async function buy() {
  const [token, place] = [session.token(), slot()];
  const old = pending();
  // An attempt that may have bought is repeated unchanged; otherwise the newest key, pass and quantity are used.
  const fresh = { id: old?.id ?? random(), key: state?.key, pass: check?.heldPass() ?? undefined, quantity, unsure: false };
  const intent = old?.unsure ? old : fresh;
  const save = (value) => kept.set(place, value && JSON.stringify(value));
  let unsure = intent.unsure; // whether an earlier attempt may have bought
  save({ ...intent, unsure: true });
  click = "asking";
  restUntil = performance.now() + REST_MS;
  draw();
  let answer;
  for (let attempt = 0; ; attempt++) {
    answer = await api(`/api/v1/sales/${saleId}/purchases`,
      { method: "POST", token, body: { key: intent.key, pass: intent.pass, quantity: intent.quantity }, headers: { "Idempotency-Key": intent.id } });
    if (isDefinite(answer) || attempt + 1 >= ATTEMPTS_MAX) break;
    unsure = true;
    click = "again";
    draw();
    await sleep(backoff(answer, attempt));
  }
  click = null;
  if (answer.ok || [400, 403, 404, 409, 422].includes(answer.status)) save(null);
  else if (answer.status === 401 || answer.status === 429) save({ ...intent, unsure });
  if (place !== slot() && answer.status !== 401) return draw(); // another buyer has signed in meanwhile
  take(answer, intent);
  if (unsure) ordersJob.soon(3000); // an attempt without an answer may still have arrived
  draw();
}

const isDefinite = ({ status }) => status !== 0 && status !== 408 && status < 500;

/** Takes the answer to a purchase. */
function take(answer, intent) {
  const { data, code, status } = answer;
  if (answer.ok) {
    check?.dropPass(intent.pass);
    wantsMore = false;
    const { cents, currency } = $("price").dataset;
    const units = intent.quantity ?? 1;
    const bought = { quantity: units, amount_cents: units * Number(cents), currency, created_at_ms: clock.ready ? clock.now() : Date.now() };
    return track({ sale_id: Number(saleId), ...bought, ...data });
  }
  if (!isDefinite(answer)) return say("say-gave-up", {}, "bad");
  if (status === 429) restUntil = Math.max(restUntil, performance.now() + (answer.retryAfterMs ?? 0));
  if (code === "pass-invalid") check?.dropPass(intent.pass);
  if (code === "not-started") clock.sync(3);
  if (status === 403) stateJob.soon(jitter(300));
  if (code === "already-purchased") ordersJob.soon();
  if (code === "sold-out" && intent.quantity > 1) {
    quantity = 1;
    return say("fewer-left", { n: intent.quantity }, "bad");
  }
  if (code === "sold-out" && state) {
    state.sold_out = true;
    enter();
  }
  sayProblem(answer);
}

/** Repeats a purchase that a reload or the network interrupted, to get its answer. */
function resume() {
  if (session.token() && !click && pending()?.unsure) buy();
}

// Drawing

let synced = false;

function draw() {
  enter();
  check?.draw();
  const view = shown(world());
  const { button } = view;
  const words = values();
  set($("label"), t(button.label, words));
  set($("why"), button.why && !button.isHidden ? t(button.why, words) : "");
  $("buy").setAttribute("aria-disabled", String(!button.isLive));
  $("buy").hidden = $("why").hidden = button.isHidden;
  $("buy").classList.toggle("second", Boolean(view.order));
  $("sale").classList.toggle("unpaid", Boolean(view.order));
  drawPayNow(view.order, view.pay);
  drawQuantity(view.quantityMax);
  drawOrders(view.order?.order_id);
  drawSteps(view.steps);
  drawMessage();
  waves.forEach(drawWave);
  for (const [id, ms] of [["opens", state?.starts_at_ms], ["closes", state?.ends_at_ms]]) {
    if (!ms || $(id).dataset.ms === String(ms)) continue;
    $(id).dataset.ms = String(ms);
    set($(id), moment(ms));
  }
  drawSold();
  $("remind-row").hidden = !view.canRemind;
  if (!state && !missing) return;
  drawTimer(view.timer);
  syncClock();
  $("sale").setAttribute("aria-busy", "false");
  ready();
}

function drawTimer(timer) {
  const left = (timer?.untilMs ?? NaN) - clock.now();
  $("timer").hidden = !timer?.untilMs;
  set($("phase"), timer ? t(timer.label) : "");
  if (!timer?.untilMs) return;
  for (const [part, value] of Object.entries(parts(left))) set($(part), String(value));
  $("days-box").hidden = left < 86_400_000;
}

/** A signed-in visitor gets the exact time before the start. Others know it by the answers about the state. */
function syncClock() {
  const left = (state?.starts_at_ms ?? NaN) - clock.now();
  if (synced || !(left > 0 && left <= 60_000) || !session.token()) return;
  synced = true;
  setTimeout(() => clock.sync(3), Math.random() * Math.min(20_000, left / 2));
}

function drawQuantity(max) {
  quantity = Math.min(quantity, Math.max(max, 1));
  $("choice").hidden = !max;
  if (!max) return;
  const { cents, currency } = $("price").dataset;
  set($("quantity"), String(quantity));
  $("fewer").setAttribute("aria-disabled", String(quantity <= 1));
  $("several").setAttribute("aria-disabled", String(quantity >= max));
  set($("total"), t("total", { n: quantity, price: money(Number(cents), currency), amount: money(quantity * Number(cents), currency) }));
}

/** How far it is sold, where the shop shows it. */
function drawSold() {
  const percent = state?.sold_percent;
  $("sold").hidden = percent === undefined;
  if (percent === undefined) return;
  $("sold-bar").value = percent;
  set($("sold-text"), t("sold-percent", { percent }));
}

function drawWave({ item, afterMs, units }) {
  const startsAtMs = state?.starts_at_ms ?? Number(main.dataset.startsAtMs);
  const [atMs, now] = [startsAtMs + afterMs, clock.now()];
  const isNext = now >= startsAtMs && nextWave({ waves: timed(), now })?.item === item;
  const more = atMs <= now ? t("wave-past") : isNext ? t("wave-left", { left: span(atMs - now) }) : "";
  set(item, `${t("wave", { units, at: moment(atMs) })}${more && ` · ${more}`}`);
  item.className = atMs <= now ? "past" : isNext ? "next" : "";
}

function drawSteps(steps) {
  $("steps").hidden = !steps;
  [...$("steps").children].forEach((item, i) => {
    const isDone = i < steps?.done;
    const isNow = i === steps?.done;
    item.className = isDone ? "done" : isNow ? (steps.hasFailed ? "failed" : "now") : "";
    if (isNow) item.setAttribute("aria-current", "step");
    else item.removeAttribute("aria-current");
    set(item.lastElementChild, isDone ? t("done") : isNow && steps.hasFailed ? t("failed") : "");
  });
}

$("remind").addEventListener("click", () => {
  const { starts_at_ms: startsAtMs, ends_at_ms: endsAtMs } = state;
  const [name, url] = [$("product").textContent, `${location.origin}${location.pathname}`];
  const file = calendar({ id: `sale-${saleId}@${location.host}`, name, url, startsAtMs, endsAtMs, nowMs: clock.now() });
  URL.revokeObjectURL($("remind").href);
  // The link itself is followed: browsers save the file, or open it in the calendar.
  Object.assign($("remind"), { href: URL.createObjectURL(new Blob([file], { type: "text/calendar;charset=utf-8" })), download: `sale-${saleId}.ics` });
});

check?.begin({ startsAtMs: () => state?.starts_at_ms ?? Number(main.dataset.startsAtMs), wants: () => shown(world()).check });
changes.addEventListener("session", () => {
  wantsMore = false;
  resume();
  draw();
});
changes.addEventListener("language", draw);
changes.addEventListener("orders", ({ detail }) => {
  if (detail.freed) stateJob.soon(jitter(600)); // the unit may be for sale again
  draw();
});
addEventListener("online", resume);
document.addEventListener("visibilitychange", () => {
  if (document.hidden) return;
  stateJob.soon(100 * Math.random());
  // Another tab may have bought.
  if (session.token()) ordersJob.soon(jitter(500));
});
resume();
draw();
setInterval(draw, 200);
