// The buyer's orders, of one sale or of all: reads them, follows them until their status is final, pays, cancels and refunds them.
// order-list.js draws the list, and pay-now.js the order that waits for payment.

import { addTexts, announce, api, changes, jitter, job, say, sayProblem, session, stream, t } from "./front.js";

addTexts({
  "no-channels": ["The ways to pay are not known yet. Press again in a moment.", "付款渠道尚未就绪，请稍后再按一次。"],
  "sure-cancel": ["Press again to cancel", "再按一次确认取消"], "sure-refund": ["Press again for a refund", "再按一次确认退款"],
  "accepted": ["Reserved for you. Your order is being written.", "已为您锁定，正在生成订单。"],
  "pending_payment": ["Reserved: waiting for payment", "已锁定，等待付款"],
  "paid": ["Paid", "已付款"], "refunding": ["Being refunded", "退款中"], "refunded": ["Refunded", "已退款"],
  "cancelled": ["Cancelled", "已取消"], "rejected": ["Not created: the stock had run out", "未成交：库存不足"],
  "expired": ["Cancelled: not paid in time", "已取消：超时未付款"], "by-buyer": ["Cancelled by you", "您已取消"],
  "over-limit": ["Not created: over the limit of one buyer", "未成交：超过每人限购数量"],
  "say-declined": ["Not paid: {reason} Nothing was taken. Try again, or choose another way to pay.", "付款未成功：{reason}未扣款，请重试或更换付款方式。"],
  "declined": ["the bank declined the payment.", "银行拒绝了付款。"],
  "insufficient-funds": ["there is not enough money in the account.", "余额不足。"],
  "card-expired": ["the card has expired.", "银行卡已过期。"],
  "limit-exceeded": ["the amount is above the limit of the account.", "超出账户限额。"],
  "failed-payment": ["the payment could not be made.", "付款失败。"],
});

/** A browser opens six connections to a server, and other requests need some of them. Further orders are polled. */
const STREAMS_MAX = 2;
const SURE_MS = 5000;
const UNPAID = ["accepted", "pending_payment"];
const MOVING = [...UNPAID, "refunding"];
const LOST = ["cancelled", "rejected", "refunded"];
/** The position of a status in an order's life: it shows that an answer is older than the present state. */
const STAGE = { accepted: 0, pending_payment: 1, paid: 2, refunding: 3, refunded: 4, cancelled: 4, rejected: 4 };
/** Of the payment of an unpaid order: it is on its way, or has just succeeded. */
const PAID_FOR = ["created", "sending", "waiting", "succeeded"];
const REASONS = ["declined", "insufficient-funds", "card-expired", "limit-exceeded"];

/** The page's sale; undefined on the page of all orders. */
export const saleId = document.querySelector("main").dataset.sale;
export const orders = new Map();
let streams = 0;
/** The payment channels, with their names for people, once the service has listed them. */
export let channels = [];

/** Loaded when the first order waits for payment. */
const channelsJob = job(async (self) => {
  const answer = await api("/api/v1/payments/channels");
  if (!answer.ok) return self.again(answer);
  const { titles } = answer.data;
  channels = answer.data.channels.map((name, i) => ({ name, title: titles[i].title, titleZh: titles[i].title_zh }));
  changed();
  return Infinity;
});

const firstPage = saleId ? `/api/v1/orders?sale_id=${saleId}` : "/api/v1/orders";
let page = firstPage;
let nextPage = null;
export const hasMore = () => nextPage !== null;
export function more() {
  page = nextPage;
  ordersJob.soon();
}

export const ordersJob = job(async (self) => {
  const [token, who] = [session.token(), session.who()];
  if (!token) return changed(), Infinity;
  const answer = await api(page, { token });
  if (who !== session.who()) return Infinity;
  if (!answer.ok) return saleId || sayProblem(answer), self.again(answer);
  if (self.fails && !saleId) say();
  self.fails = 0;
  const isMore = page !== firstPage;
  [page, nextPage] = [firstPage, answer.next];
  answer.data.forEach(track);
  changes.dispatchEvent(new CustomEvent("listed", { detail: isMore ? answer.data[0] : null }));
  return Infinity;
}, 0);

const changed = (freed = false) => changes.dispatchEvent(new CustomEvent("orders", { detail: { freed } }));
const kind = ({ status }) => (LOST.includes(status) ? "bad" : "good");
/** The text for an order's status. */
export const told = ({ status, reason }) => (["expired", "by-buyer", "over-limit"].includes(reason) ? reason : status);
/** Why a payment has failed, in people's words. */
export const whyFailed = (reason) => t(REASONS.includes(reason) ? reason : "failed-payment");

/** The orders as page-state.js knows them. */
export const facts = () => [...orders.values()].map(({ data, isFresh, isAsking, changedAt }) => ({ ...data, isFresh, isPaying: isAsking, changedAt }));

/** Takes what the service says of an order, announces news, and follows the order until its status is final. */
export function track(data) {
  let order = orders.get(data.order_id);
  if (order && STAGE[data.status] < STAGE[order.data.status]) return;
  const before = order?.data;
  if (!order) {
    order = { data, delay: 500, sure: null, isAsking: false, live: false, isFresh: false };
    orders.set(data.order_id, order);
  }
  order.data = { ...order.data, ...data };
  order.isFresh ||= UNPAID.includes(data.status);
  order.heardAt = performance.now();
  order.isStale = true;
  const news = before && before.status !== data.status;
  if (news || !before) order.changedAt = order.heardAt;
  const declined = data.payment?.status === "failed" && before && before.payment?.status !== "failed" && data.status === "pending_payment";
  if (isMoving(order)) follow(order);
  else order.abort?.abort();
  if (data.status === "pending_payment" && !channels.length) channelsJob.soon();
  changed(news && LOST.includes(data.status));
  // The page of the sale tells the news of its order by itself, if it is the only one.
  const isOne = [...orders.values()].every((other) => other === order || !UNPAID.includes(other.data.status));
  if (saleId && order.isFresh && isOne) return;
  if (news) say(told(data), {}, kind(data));
  else if (declined) say("say-declined", { reason: () => whyFailed(data.payment.reason) }, "bad");
}

// Following: by events, with polling as the fallback

const isMoving = ({ data }) => MOVING.includes(data.status);
export const isPaying = ({ data, isAsking }) => isAsking || (data.status === "pending_payment" && PAID_FOR.includes(data.payment?.status));
const isTracked = (order) => orders.get(order.data.order_id) === order;
const pathOf = ({ data }, what = "") => `/api/v1/orders/${data.order_id}${what}`;

function follow(order) {
  order.poll ??= job((self) => poll(order, self));
  order.listen ??= job((self) => listen(order, self), 0);
  order.poll.soon(untilPoll(order));
}

/** How long an order with working events is not read. The time is shorter while its buyer waits for something. */
const netMs = (order) => (isPaying(order) || order.data.status === "accepted" ? 5000 : 30_000);

/** The ms until the order is read again. */
function untilPoll(order) {
  if (!isMoving(order)) return Infinity;
  if (order.live) return jitter(netMs(order));
  if (isPaying(order)) return jitter(700);
  if (order.data.status !== "accepted") return jitter(5000);
  order.delay = Math.min(order.delay * 1.5, 3000);
  return order.delay / 1.5;
}

async function poll(order, self) {
  const token = session.token();
  if (!token || !isMoving(order)) return Infinity;
  if (order.live && performance.now() - order.heardAt < netMs(order) / 2) return untilPoll(order);
  const answer = await api(pathOf(order), { token });
  if (!isTracked(order)) return Infinity;
  if (!answer.ok) return self.again(answer);
  self.fails = 0;
  track(answer.data);
  return untilPoll(order);
}

/** Reads the order's events while they last. The service ends a stream after a final status, and after 15 minutes. */
async function listen(order, self) {
  const token = session.token();
  if (!token || !isMoving(order)) return Infinity;
  if (streams >= STREAMS_MAX) return jitter(5000);
  streams++;
  order.abort = new AbortController();
  const answer = await stream(pathOf(order, "/events"), {
    token, lastId: order.seen, abort: order.abort,
    onOpen() { order.live = true; self.fails = 0; },
    onEvent({ type, data, id }) {
      if (!["status", "payment"].includes(type) || !isTracked(order)) return;
      order.seen = id ?? order.seen;
      track(JSON.parse(data));
    },
  });
  streams--;
  order.live = false;
  if (!isTracked(order) || [204, 404].includes(answer.status)) return Infinity;
  if (!isMoving(order)) {
    self.stop();
    order.listen = null; // a refund may come
    return Infinity;
  }
  order.poll.soon(untilPoll(order));
  return answer.ok ? jitter(answer.retryMs ?? 2000) : Math.max(self.again(answer), answer.retryMs ?? 0);
}

// A hidden page follows nothing, because jobs rest while it is hidden; it continues by itself. After an outage of the network, old
// streams are dead without a sign.
const endStreams = () => orders.forEach((order) => order.abort?.abort());
document.addEventListener("visibilitychange", () => document.hidden && endStreams());
addEventListener("online", endStreams);

// The buyer's actions

export const isFree = ({ data }) => data.amount_cents === 0;
export const canPay = (order) => (isFree(order) || channels.length > 0) && !isPaying(order);
const ask = (order, what, body) => api(pathOf(order, `/${what}`), { method: "POST", token: session.token(), body });

export async function pay(order, channel) {
  if (!isFree(order) && !channels.length) return say("no-channels");
  if (!canPay(order)) return;
  order.isAsking = order.isStale = true;
  changed();
  const answer = await ask(order, "payments", { channel: isFree(order) ? "none" : channel });
  order.isAsking = false;
  order.isStale = true;
  if (!isTracked(order)) return;
  // The outcome comes by the order's events.
  if (answer.ok && !isFree(order)) order.data.payment = { ...answer.data, channel };
  if (isMoving(order)) follow(order);
  if (!answer.ok) readAgain(order);
  changed();
  if (!answer.ok) sayProblem(answer);
}

/** Reads the order even if its events work: the lost answer may have been a success, of which no event tells. */
function readAgain(order) {
  order.heardAt = -Infinity;
  order.poll?.soon();
}

export async function cancel(order) {
  if (!isSure(order, "cancel")) return;
  const answer = await ask(order, "cancel");
  if (!isTracked(order)) return;
  if (answer.ok) return track(answer.data);
  sayProblem(answer);
  readAgain(order);
}

export async function refund(order) {
  if (!isSure(order, "refund")) return;
  const answer = await ask(order, "refunds", { reason: "" });
  if (!isTracked(order)) return;
  if (!answer.ok) return sayProblem(answer);
  track({ ...order.data, status: "refunding" });
}

export const isUnsure = ({ sure }, act) => sure?.act === act && performance.now() < sure.until;

/** Actions that cannot be undone need two presses. */
function isSure(order, act) {
  const again = isUnsure(order, act);
  order.sure = again ? null : { act, until: performance.now() + SURE_MS };
  order.isStale = true;
  if (!again) announce(`sure-${act}`);
  changed();
  return again;
}

// Another buyer has other orders.
changes.addEventListener("session", () => {
  orders.forEach((order) => {
    order.poll?.stop();
    order.listen?.stop();
    order.abort?.abort();
  });
  orders.clear();
  [page, nextPage] = [firstPage, null];
  ordersJob.soon();
  changed();
});
