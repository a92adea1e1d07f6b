// The buyer's orders, of one sale or of all: shows them, follows them until their status is final, pays, cancels and refunds them.

import { $, addTexts, api, changes, clock, el, jitter, job, money, moment, ready, say, sayProblem, session, set, span, stream, t }
  from "./front.js";

addTexts({
  "order": ["Order {id}", "订单 {id}"], "units": ["{n} × {price}", "{n} 件 × {price}"], "sale": ["Sale {id}", "抢购 {id}"],
  "pay-by": ["{left} left to pay", "剩余付款时间 {left}"], "late": ["The time to pay is over", "付款时间已过"],
  "hurry": ["One minute left to pay for your order.", "订单付款时间仅剩一分钟。"],
  "pay": ["Pay", "付款"], "confirm": ["Confirm: nothing to pay", "确认（无需付款）"], "channel": ["Pay through", "付款渠道"], "paying": ["Paying …", "正在付款…"],
  "say-paying": ["Your payment is on its way.", "付款已发出。"],
  "no-channels": ["The ways to pay are not known yet. Press again in a moment.", "付款渠道尚未就绪，请稍后再按一次。"],
  "no-news": ["No news of the payment yet. You may press again: an order is never paid twice.", "暂无付款结果，可再按一次，不会重复扣款。"],
  "cancel": ["Cancel", "取消订单"], "sure-cancel": ["Press again to cancel", "再按一次确认取消"],
  "refund": ["Refund", "退款"], "sure-refund": ["Press again for a refund", "再按一次确认退款"],
  "accepted": ["Accepted: your order is being written", "已抢到，正在生成订单"], "pending_payment": ["Yours: waiting for payment", "下单成功，等待付款"],
  "paid": ["Paid", "已付款"], "refunding": ["Being refunded", "退款中"], "refunded": ["Refunded", "已退款"],
  "cancelled": ["Cancelled", "已取消"], "rejected": ["Not created: the stock had run out", "未成交：库存不足"],
  "expired": ["Cancelled: not paid in time", "已取消：超时未付款"], "by-buyer": ["Cancelled by you", "您已取消"],
  "over-limit": ["Not created: over the limit of one buyer", "未成交：超过每人限购数量"],
  "no-orders": ["You have no orders yet.", "您还没有订单。"], "sign-in-first": ["Sign in to see your orders.", "登录后可查看订单。"],
});

const SURE_MS = 5000;
/** After this long without news, a payment may be requested again. The service makes one payment of an order at a time. */
const PAYING_MS = 20_000;
/** A browser opens six connections to a server, and other requests need some of them. Further orders are polled. */
const STREAMS_MAX = 2;
const HURRY_MS = 60_000;
const HELD = ["accepted", "pending_payment", "paid", "refunding"];
const MOVING = ["accepted", "pending_payment", "refunding"];
const LOST = ["cancelled", "rejected", "refunded"];
/** The position of a status in an order's life: it shows that an answer is older than the present state. */
const STAGE = { accepted: 0, pending_payment: 1, paid: 2, refunding: 3, refunded: 4, cancelled: 4, rejected: 4 };

/** The page's sale; undefined on the page of all orders. */
const saleId = document.querySelector("main").dataset.sale;
const orders = new Map();
let streams = 0;
/** The names of the payment channels, once the service has listed them. */
let channels = [];

/** Loaded when the first order waits for payment. */
const channelsJob = job(async (self) => {
  const answer = await api("/api/v1/payments/channels");
  if (!answer.ok) return self.again(answer);
  channels = answer.data.channels;
  changed();
  return Infinity;
});

const firstPage = saleId ? `/api/v1/orders?sale_id=${saleId}` : "/api/v1/orders";
let page = firstPage;
let nextPage = null;

export const ordersJob = job(async (self) => {
  const token = session.token();
  if (!token) return drawPage(), Infinity;
  const answer = await api(page, { token });
  if (answer.status === 401 || token !== session.token()) return Infinity;
  if (!answer.ok) return saleId || sayProblem(answer), self.again(answer);
  if (self.fails && !saleId) say();
  self.fails = 0;
  const isMore = page !== firstPage;
  [page, nextPage] = [firstPage, answer.next];
  answer.data.forEach(track);
  // The button may have disappeared with the last page.
  if (isMore) orders.get(answer.data[0]?.order_id)?.item.focus();
  drawPage();
  return Infinity;
}, 0);

const changed = (freed = false) => changes.dispatchEvent(new CustomEvent("orders", { detail: { freed } }));
export const kind = ({ status }) => (LOST.includes(status) ? "bad" : "good");
/** The text for an order's status. */
export const told = ({ status, reason }) => (["expired", "by-buyer", "over-limit"].includes(reason) ? reason : status);

/** Shows an order, announces a changed status, and follows the order until its status is final. */
export function track(data) {
  let order = orders.get(data.order_id);
  if (order && STAGE[data.status] < STAGE[order.data.status]) return;
  const news = order && order.data.status !== data.status;
  if (!order) {
    order = { data, ...build(), delay: 500, sure: null, payingUntil: 0, live: false, isFresh: data.status === "accepted" };
    for (const [act, button] of Object.entries(order.buttons)) button.addEventListener("click", () => ACTS[act](order));
    const older = [...orders.values()].filter((other) => other.data.created_at_ms < data.created_at_ms);
    older.sort((a, b) => b.data.created_at_ms - a.data.created_at_ms);
    $("orders").insertBefore(order.item, older[0]?.item ?? null);
    orders.set(data.order_id, order);
  }
  if (news) {
    order.payingUntil = 0;
    say(told(data), {}, kind(data));
  }
  order.data = { ...order.data, ...data };
  order.heardAt = performance.now();
  order.isStale = true;
  if (isMoving(order)) follow(order);
  else order.abort?.abort();
  if (data.status === "pending_payment" && !channels.length) channelsJob.soon();
  changed(news && LOST.includes(data.status));
}

function build() {
  const nodes = { sale: el("a", "sale"), status: el("strong"), name: el("span", "name"), terms: el("span", "hint"), deadline: el("span", "deadline") };
  const buttons = {};
  for (const act of ["pay", "cancel", "refund"]) {
    buttons[act] = el("button", `quiet ${act}`);
    buttons[act].type = "button";
  }
  const [channel, caption] = [el("select"), el("span")];
  const label = el("label", "", caption, channel);
  const what = saleId ? [] : [nodes.sale];
  const item = el("li", "", el("div", "what", ...what, nodes.status, nodes.name, nodes.terms, nodes.deadline),
    el("div", "acts", label, ...Object.values(buttons)));
  item.tabIndex = -1;
  return { item, nodes, buttons, channel, label, caption };
}

// Following: by events, with polling as the fallback

const isMoving = ({ data }) => MOVING.includes(data.status);
const isPaying = (order) => performance.now() < order.payingUntil;
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
  if (answer.status === 401 || !isTracked(order)) return Infinity;
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
      if (type !== "status" || !isTracked(order)) return;
      order.seen = id;
      track(JSON.parse(data));
    },
  });
  streams--;
  order.live = false;
  if (!isTracked(order) || [204, 401, 404].includes(answer.status)) return Infinity;
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

const isFree = ({ data }) => data.amount_cents === 0;
const canPay = (order) => (isFree(order) || channels.length > 0) && !isPaying(order);
const ask = (order, what, body) => api(pathOf(order, `/${what}`), { method: "POST", token: session.token(), body });

const ACTS = {
  async pay(order) {
    if (!isFree(order) && !channels.length) return say("no-channels");
    if (!canPay(order)) return;
    order.payingUntil = performance.now() + PAYING_MS;
    if (!isFree(order)) say("say-paying");
    changed();
    const answer = await ask(order, "payments", { channel: isFree(order) ? "none" : order.channel.value });
    if (!answer.ok) {
      order.payingUntil = 0;
      sayProblem(answer);
    }
    if (isMoving(order)) follow(order);
    changed();
  },
  async cancel(order) {
    if (!isSure(order, "cancel")) return;
    const answer = await ask(order, "cancel");
    if (answer.ok) return track(answer.data);
    sayProblem(answer);
    order.poll?.soon();
  },
  async refund(order) {
    if (!isSure(order, "refund")) return;
    const answer = await ask(order, "refunds", { reason: "" });
    if (!answer.ok) return sayProblem(answer);
    track({ ...order.data, status: "refunding" });
  },
};

/** Actions that cannot be undone need two presses. */
function isSure(order, act) {
  const again = order.sure?.act === act && performance.now() < order.sure.until;
  order.sure = again ? null : { act, until: performance.now() + SURE_MS };
  if (!again) say(`sure-${act}`);
  drawOrder(order);
  return again;
}

// Drawing

function drawOrder(order) {
  const { data, item, nodes, buttons, channel, label, caption } = order;
  const waits = data.status === "pending_payment";
  const left = data.expires_at_ms - clock.now();
  item.className = data.status;
  const name = t("order", { id: data.order_id.slice(-8) });
  set(nodes.status, t(told(data)));
  set(nodes.name, `${name} · ${moment(data.created_at_ms)}`);
  set(nodes.terms, t("units", { n: data.quantity, price: money(data.amount_cents / data.quantity, data.currency) }));
  if (!saleId) drawSaleName(nodes.sale, data.sale_id);
  set(nodes.deadline, !waits || !clock.ready ? "" : left > 0 ? t("pay-by", { left: span(left) }) : t("late"));
  if (waits && order.left > HURRY_MS && left <= HURRY_MS) say("hurry");
  order.left = left;
  if (order.payingUntil && !isPaying(order)) {
    order.payingUntil = 0;
    say("no-news");
  }
  const paying = isPaying(order);
  if (channel.length !== channels.length) channel.replaceChildren(...channels.map((one) => new Option(one)));
  channel.disabled = paying;
  set(caption, t("channel"));
  label.hidden = !waits || isFree(order);
  for (const [act, button] of Object.entries(buttons)) {
    const shown = act === "refund" ? data.status === "paid" : waits;
    const unsure = order.sure?.act === act && performance.now() < order.sure.until;
    const plain = act === "pay" && isFree(order) ? "confirm" : act;
    const text = t(act === "pay" && paying ? "paying" : unsure ? `sure-${act}` : plain);
    set(button, text);
    button.setAttribute("aria-label", `${text}: ${name}`);
    // Not `disabled`, which would lose the focus.
    button.setAttribute("aria-disabled", String(act === "pay" && !canPay(order)));
    if (!shown && document.activeElement === button) item.focus();
    button.hidden = !shown;
  }
  // An order without changes is drawn again only after a change of it or of the language.
  order.isStale = isMoving(order) || Boolean(order.sure && performance.now() < order.sure.until);
}

export function drawOrders() {
  orders.forEach((order) => order.isStale && drawOrder(order));
  if (saleId) $("mine").hidden = !orders.size;
}

/** Units of this buyer that count against the limit. */
export function held() {
  return [...orders.values()].reduce((sum, { data }) => sum + (HELD.includes(data.status) ? data.quantity : 0), 0);
}

/** The newest accepted order that this page knows. */
export function newestFresh() {
  const fresh = [...orders.values()].filter((order) => order.isFresh).map((order) => order.data);
  return fresh.sort((a, b) => b.created_at_ms - a.created_at_ms)[0];
}

// Another buyer has other orders.
changes.addEventListener("session", () => {
  orders.forEach((order) => {
    order.poll?.stop();
    order.listen?.stop();
    order.abort?.abort();
    order.item.remove();
  });
  orders.clear();
  [page, nextPage] = [firstPage, null];
  if (!saleId && session.token()) {
    $("orders").setAttribute("aria-busy", "true");
    $("orders").hidden = false;
    $("none").hidden = true;
  }
  ordersJob.soon();
  changed();
});
changes.addEventListener("language", () => orders.forEach((order) => { order.isStale = true; }));

// The page of all orders: names of sales, and one page after another

/** The products' names by sale; null if the sale no longer exists. */
const names = new Map();
let isListed = false;

const namesJob = job(async (self) => {
  const unknown = [...orders.values()].map(({ data }) => data.sale_id).find((id) => !names.has(id));
  if (unknown === undefined) return Infinity;
  // The newest sales come in one answer. Older ones are asked for one by one.
  const answer = await api(isListed ? `/api/v1/sales/${unknown}` : "/api/v1/sales");
  if (!answer.ok && answer.status !== 404) return self.again(answer);
  self.fails = 0;
  if (isListed) names.set(unknown, answer.data.product?.name ?? null);
  else answer.data.forEach((sale) => names.set(sale.id, sale.product.name));
  isListed = true;
  orders.forEach((order) => { order.isStale = true; });
  return jitter(50);
});

function drawSaleName(link, id) {
  const name = names.get(id);
  set(link, name ?? t("sale", { id }));
  if (name) link.href = `/sales/${id}`;
}

function drawPage() {
  if (saleId) return;
  const signedIn = Boolean(session.token());
  $("orders").setAttribute("aria-busy", "false");
  $("orders").hidden = !orders.size;
  $("none").hidden = orders.size > 0;
  if (!orders.size) set($("none"), t(signedIn ? "no-orders" : "sign-in-first"));
  $("more").hidden = !nextPage;
  namesJob.soon();
  drawOrders();
  ready();
}

if (!saleId) {
  $("more").addEventListener("click", () => {
    page = nextPage;
    ordersJob.soon();
  });
  changes.addEventListener("language", () => $("orders").getAttribute("aria-busy") === "true" || drawPage());
  changes.addEventListener("orders", drawOrders);
  document.addEventListener("visibilitychange", () => document.hidden || clock.sync(1));
  clock.sync(1);
  setInterval(drawOrders, 250);
}
