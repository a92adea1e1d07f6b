// What the page of a sale shows: pure functions of what is known. sale.js reads, asks and draws. tests/browser/page_states.rs has the table.
//
// `world` is what is known:
//   now, tick              the server's time; this page's own time, for waits
//   state, lost, missing   the last answer of state.js, or null; how many requests since then had no answer; there is no such sale
//   from, since            the phase before the present one, and when (`tick`) the present one began
//   offline                the device has no network
//   isOutdated             the page shows other terms than the sale has; it will load itself again
//   perUser, minLevel      of the sale
//   waves                  [{ atMs, units }]
//   user, level            the buyer, or null
//   offersSignIn           the page has a form to sign in
//   check                  "none" (the sale asks for none), "closed", "open" (the buyer can do it now), or "done"
//   orders                 the buyer's orders in this sale, as the service tells them, and of this page: `isFresh` (it was unpaid while the page
//                          was open), `isPaying` (the buyer has pressed the button), `changedAt` (`tick`)
//   canPay                 the ways to pay are known
//   click                  null, "asking", or "again": a purchase that waits for its answer
//   restUntil              the end of the rest after a click (`tick`)
//   wantsMore              the buyer has an unpaid order, and asks for more
//   note                   a message that something else has made: { key, values, kind, of, until }. It holds in the state `of`, to `until` (`tick`)

/** Orders of these statuses count against the buyer's limit. */
const HELD = ["accepted", "pending_payment", "paid", "refunding"];
const UNPAID = ["accepted", "pending_payment"];
/** Of the payment of an unpaid order: it is on its way, or has just succeeded. */
const PAID_FOR = ["created", "sending", "waiting", "succeeded"];
const HURRY_MS = 60_000;
const REMIND_MS = 600_000;
/** The start is announced this long before it. */
const MILESTONES_S = [10, 60];

const newest = (orders) => orders.reduce((one, other) => (one && one.created_at_ms >= other.created_at_ms ? one : other), null);

/** The units of this buyer that count against the limit. */
export const held = (orders) => orders.reduce((sum, { status, quantity }) => sum + (HELD.includes(status) ? quantity : 0), 0);

export function phaseOf({ missing, state, now }) {
  if (missing) return "missing";
  if (!state) return "loading";
  if (state.status === "ended" || now >= state.ends_at_ms) return "over";
  if (state.status === "paused") return "paused";
  if (state.status === "open") return state.sold_out ? "gone" : "open";
  return now < state.starts_at_ms ? "before" : "opening";
}

export const nextWave = ({ waves, now }) => waves.filter(({ atMs }) => atMs > now).sort((a, b) => a.atMs - b.atMs)[0] ?? null;

/** How far the payment of an unpaid order is. */
export function payStage({ status, expires_at_ms, payment, isPaying }, now) {
  if (status === "accepted") return "writing";
  if (isPaying || PAID_FOR.includes(payment?.status)) return "paying";
  if (now >= expires_at_ms) return "late";
  return payment?.status === "failed" ? "declined" : "waiting";
}

/** What is shown. */
export function shown(world) {
  const view = viewOf(world);
  return { ...view, message: messageOf(world, view) };
}

/** What a message depends on. A message of another state is not shown. */
export function standing(world) {
  const view = viewOf(world);
  const orders = world.orders.map(({ order_id, status, payment }) => [order_id, status, payment?.payment_id, payment?.status]);
  return JSON.stringify([view.phase, world.user, world.click, orders, derived(world, view)]);
}

function viewOf(world) {
  const phase = phaseOf(world);
  const room = world.perUser - held(world.orders);
  const order = newest(world.orders.filter(({ status }) => UNPAID.includes(status)));
  const view = { phase, room, order };
  return { ...view, button: button(world, view), pay: order && pay(world, order), check: check(world, view), quantityMax: quantityMax(view), timer: timer(world, view), steps: steps(world, view), canRemind: canRemind(world, phase) };
}

const isTooLow = ({ user, level, minLevel }) => user !== null && level < minLevel;

/** The button to buy: its label, the reason below it, whether a click buys, and whether it is there. */
function button(world, { phase, room, order }) {
  const off = (label, why = null) => ({ label, why, isLive: false, isHidden: false });
  if (world.click) return off("asking", "why-asking");
  // An unpaid order comes first. More can be bought beside it.
  if (phase === "missing" || (order && (room <= 0 || phase !== "open"))) return { ...off("loading"), isHidden: true };
  if (phase === "loading") return off("loading");
  if (room <= 0) return off("have", "why-have");
  if (phase === "over") return off("over");
  if (isTooLow(world)) return off("level", "why-level");
  if (phase === "before") return off("before", whyBefore(world));
  if (phase === "opening") return off("opening");
  if (phase === "paused") return off("paused", "why-paused");
  if (phase === "gone") return off("gone", nextWave(world) ? "why-wave" : "why-gone");
  if (world.isOutdated) return off("loading", "why-changed");
  if (world.user === null) return off("sign-in", world.offersSignIn ? "why-sign-in" : "unauthenticated");
  if (world.tick < world.restUntil) return off("resting", "why-resting");
  if (!isChecked(world)) return off(order && !world.wantsMore ? "more" : "check-first", "why-check-first");
  return { label: order ? "more" : "buy", why: world.lost > 2 ? "why-lost" : "why-open", isLive: true, isHidden: false };
}

const isChecked = ({ check }) => check === "none" || check === "done";

function whyBefore(world) {
  if (world.user === null) return world.offersSignIn ? "why-sign-in" : "unauthenticated";
  return world.check === "open" ? "why-check" : "why-before";
}

/** The button to pay, in the place of the button to buy. */
function pay({ now, canPay }, order) {
  const stage = payStage(order, now);
  const isFree = order.amount_cents === 0;
  const label = { writing: "writing", paying: "paying", late: "late", declined: "pay-again", waiting: isFree ? "confirm" : "pay-amount" }[stage];
  return { label, isLive: ["declined", "waiting"].includes(stage) && (isFree || canPay), hasChannel: !isFree && stage !== "writing", stage };
}

/** Whether the buyer shall do the check: "yes", "no", "wait", or "sign-in" first. */
function check(world, { phase, room, order }) {
  if (phase === "missing" || phase === "over" || isTooLow(world) || room <= 0 || (order && !world.wantsMore)) return "no";
  if (phase === "loading") return "wait";
  return world.user === null ? "sign-in" : "yes";
}

/** How many units the buyer may choose at most; 0 where there is no choice. */
function quantityMax({ phase, room, order }) {
  // It stays while the sale is paused or sold out, so that the button does not move when it goes on.
  const isFor = order ? phase === "open" : ["before", "opening", "open", "paused", "gone"].includes(phase);
  return isFor && room >= 2 ? room : 0;
}

function timer(world, { phase, order }) {
  const { now, state } = world;
  if (phase === "missing" || phase === "loading") return null;
  if (order) return { label: "pay-left", untilMs: order.expires_at_ms };
  if (phase === "over") return { label: "is-over", untilMs: null };
  const wave = phase === "gone" && nextWave(world);
  if (wave) return { label: "wave-in", untilMs: wave.atMs };
  return now < state.starts_at_ms || phase === "opening" ? { label: "starts-in", untilMs: state.starts_at_ms } : { label: "ends-in", untilMs: state.ends_at_ms };
}

/** Whether a reminder makes sense: the start is not near. */
const canRemind = ({ now, state }, phase) => phase === "before" && state.starts_at_ms - now > REMIND_MS;

/** The steps of the newest order that was unpaid on this page: how many are done, and whether the next one failed. */
function steps(world, { order }) {
  const of = order ?? newest(world.orders.filter(({ isFresh }) => isFresh));
  const done = { accepted: 1, pending_payment: 1, paid: 3, rejected: 0 }[of?.status];
  return done === undefined ? null : { done, hasFailed: of.status === "rejected" };
}

function messageOf(world, view) {
  if (world.offline) return { key: "offline", kind: "bad" };
  const { note } = world;
  if (note && note.of === standing(world) && world.tick < note.until) return note;
  return derived(world, view);
}

/** The message that follows from the state alone. */
function derived(world, { phase, button, order }) {
  if (world.click) return { key: world.click === "again" ? "say-again" : "say-asking", kind: "" };
  if (order) return ofUnpaid(world, order);
  const ended = newest(world.orders.filter(({ isFresh }) => isFresh));
  const news = ofPhase(world, phase, button);
  return ended && (!news || ended.changedAt >= world.since) ? ofEnded(ended) : news;
}

function ofUnpaid({ now }, order) {
  const good = (key) => ({ key, kind: "good" });
  switch (payStage(order, now)) {
    case "writing": return good("accepted");
    case "paying": return { key: "say-paying", kind: "" };
    case "late": return { key: "say-late", kind: "bad" };
    case "declined": return { key: "say-declined", reason: order.payment.reason ?? "failed", kind: "bad" };
    default: return order.expires_at_ms - now <= HURRY_MS ? { key: "hurry", kind: "bad" } : good("reserved");
  }
}

/** The message about an order that is not unpaid any more. */
function ofEnded({ status, reason }) {
  if (status === "paid") return { key: "say-paid", kind: "good" };
  const byReason = ["expired", "by-buyer", "over-limit"].includes(reason);
  return { key: byReason ? reason : status, kind: status === "refunding" ? "good" : "bad" };
}

function ofPhase({ from, now, state, user, check }, phase, { isLive }) {
  if (phase === "missing") return { key: "unknown-sale", kind: "bad" };
  if (phase === "before") {
    const s = MILESTONES_S.find((milestone) => state.starts_at_ms - now <= milestone * 1000);
    return s ? { key: "soon", values: { s }, kind: "" } : null;
  }
  if (from === null || from === "loading") return null;
  if (phase === "open" && isLive) return { key: from === "gone" ? "back" : "go", kind: "good" };
  if (phase === "open" && user !== null && check !== "none" && check !== "done") return { key: "go-check", kind: "good" };
  return { gone: { key: "now-gone", kind: "bad" }, paused: { key: "now-paused", kind: "" }, over: { key: "ended", kind: "bad" } }[phase] ?? null;
}

// When the state is asked for

/** The edge gives one answer to all requests within this time, so a state may be this old. */
export const SHARED_MS = 100;
const START_SPREAD_MS = 40;
const POLL_MS = 1600;
const POLL_SPREAD_MS = 600;
/** A sale that has ended may be prolonged. */
const OVER_MS = 30_000;

/** The ms until the state is read again. `looks`: how often in a row the phase was the same. `random`: 0 to 1. */
export function untilAsk(world, looks, random) {
  const phase = phaseOf(world);
  const poll = POLL_MS + POLL_SPREAD_MS * (random - 0.5);
  if (phase === "missing") return Infinity;
  if (phase === "over") return OVER_MS * (0.75 + random / 2);
  // The clock says that the sale has started. The first answers may be older.
  if (phase === "opening") return Math.min(50 * 1.5 ** looks, POLL_MS) * (0.75 + random / 2);
  const left = world.state ? world.state.starts_at_ms - world.now : Infinity;
  return left > 0 && left < poll ? left + SHARED_MS / 2 + START_SPREAD_MS * random : poll;
}
