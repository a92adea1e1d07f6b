// The buyer's orders of one sale: shows them, follows them until their status is final, pays, cancels and refunds them.

import { $, addTexts, api, changes, clock, el, jitter, job, money, say, sayProblem, session, set, span, t } from "/static/front.js";

addTexts({
  "order": ["Order {id}", "订单 {id}"], "units": ["{n} × ", "{n} 件 · "], "pay-by": ["{left} left to pay", "剩余付款时间 {left}"],
  "late": ["The time to pay is over", "付款时间已过"], "cancel": ["Cancel", "取消订单"], "sure-cancel": ["Press again to cancel", "再按一次确认取消"],
  "pay": ["Pay", "付款"], "channel": ["Payment channel", "付款渠道"], "paying": ["Payment is under way", "正在付款"], "refund": ["Refund", "退款"], "sure-refund": ["Press again for a refund", "再按一次确认退款"],
  "accepted": ["Accepted: your order is being created", "已抢到，正在生成订单"], "pending_payment": ["Yours: waiting for payment", "下单成功，等待付款"],
  "paid": ["Paid", "已付款"], "refunding": ["Being refunded", "退款中"], "refunded": ["Refunded", "已退款"],
  "cancelled": ["Cancelled", "已取消"], "rejected": ["Not created: the stock had run out", "未成交：库存不足"],
  "expired": ["Cancelled: not paid in time", "已取消：超时未付款"], "by-buyer": ["Cancelled by you", "您已取消"],
  "over-limit": ["Not created: over the limit of one buyer", "未成交：超过每人限购数量"],
});

const SURE_MS = 5000;
const HELD = ["accepted", "pending_payment", "paid", "refunding"];
const LOST = ["cancelled", "rejected", "refunded"];

export const saleId = location.pathname.match(/^\/sales\/(\d+)/)?.[1] ?? "0";
const orders = new Map();
/** The names of the payment channels, once the service has listed them. */
let channels = [];

/** Asked for when the first order waits for payment. */
const channelsJob = job(async (self) => {
  const answer = await api("/api/v1/payments/channels");
  if (!answer.ok) return self.again(answer);
  channels = answer.data.channels;
  changed(false);
  return Infinity;
});

export const ordersJob = job(async (self) => {
  const token = session.token();
  if (!token) return Infinity;
  const answer = await api(`/api/v1/orders?sale_id=${saleId}`, { token });
  if (answer.status === 401 || token !== session.token()) return Infinity;
  if (!answer.ok) return self.again(answer);
  self.fails = 0;
  [...answer.data].sort((a, b) => a.created_at_ms - b.created_at_ms).forEach(track);
  return Infinity;
}, 0);

const changed = (freed) => changes.dispatchEvent(new CustomEvent("orders", { detail: { freed } }));
export const kind = ({ status }) => (LOST.includes(status) ? "bad" : "good");
/** The text for an order's status. */
export const told = ({ status, reason }) => (["expired", "by-buyer", "over-limit"].includes(reason) ? reason : status);

/** Shows an order, announces a changed status, and plans the next read until the status is final. */
export function track(data) {
  let order = orders.get(data.order_id);
  const news = order && order.data.status !== data.status;
  if (!order) {
    order = { data, delay: 500, sure: null, item: el("li"), status: el("strong"), name: el("span", "name"), terms: el("span", "hint"), acts: el("span", "acts"), buttons: {} };
    order.item.tabIndex = -1;
    for (const act of ["pay", "cancel", "refund"]) {
      const button = order.buttons[act] = el("button", act === "pay" ? "quiet pay" : "quiet");
      button.type = "button";
      button.addEventListener("click", () => ACTS[act](order));
      order.acts.append(button);
    }
    order.channel = el("select");
    order.channel.setAttribute("aria-label", t("channel"));
    order.acts.prepend(order.channel);
    order.item.append(order.status, order.name, order.terms, order.acts);
    order.poll = job((self) => poll(order, self));
    $("orders").prepend(order.item);
    orders.set(data.order_id, order);
  }
  if (news) order.paying = false;
  if (news) say(told(data), {}, kind(data));
  order.data = { ...order.data, ...data };
  order.poll.soon(next(order));
  if (data.status === "pending_payment" && !channels.length) channelsJob.soon();
  changed(news && LOST.includes(data.status));
}

/** The ms until the order is read again: 0.5 s to 3 s while it is being created, longer during a payment or a refund. */
function next(order) {
  const { status } = order.data;
  if (order.paying) return jitter(700);
  if (status === "pending_payment" || status === "refunding") return jitter(5000);
  if (status !== "accepted") return Infinity;
  order.delay = Math.min(order.delay * 1.5, 3000);
  return order.delay / 1.5;
}

async function poll(order, self) {
  const token = session.token();
  if (!token) return Infinity;
  const answer = await api(`/api/v1/orders/${order.data.order_id}`, { token });
  if (answer.status === 401 || token !== session.token()) return Infinity;
  if (!answer.ok) return self.again(answer);
  self.fails = 0;
  track(answer.data);
  return Infinity; // track has planned the next run
}

const ask = (order, what, body) =>
  api(`/api/v1/orders/${order.data.order_id}/${what}`, { method: "POST", token: session.token(), body });

const ACTS = {
  async pay(order) {
    order.paying = true;
    changed(false);
    const answer = await ask(order, "payments", { channel: order.channel.value });
    if (!answer.ok) {
      order.paying = false;
      sayProblem(answer);
    }
    order.poll.soon();
    changed(false);
  },
  async cancel(order) {
    if (!sure(order, "cancel")) return;
    const answer = await ask(order, "cancel");
    if (answer.ok) return track(answer.data);
    sayProblem(answer);
    order.poll.soon();
  },
  async refund(order) {
    if (!sure(order, "refund")) return;
    const answer = await ask(order, "refunds", { reason: "" });
    if (!answer.ok) sayProblem(answer);
    order.poll.soon();
  },
};

/** Actions that cannot be undone need two presses. */
function sure(order, act) {
  const again = order.sure?.act === act && performance.now() < order.sure.until;
  order.sure = again ? null : { act, until: performance.now() + SURE_MS };
  changed(false);
  return again;
}

function drawOrder({ data, item, name, status, terms, buttons, channel, paying, sure }) {
  const left = data.expires_at_ms - clock.now();
  const waits = data.status === "pending_payment";
  item.className = data.status;
  set(status, t(told(data)));
  set(name, t("order", { id: data.order_id.slice(-8) }));
  set(terms, t("units", { n: data.quantity }) + money(data.amount_cents)
    + (waits && clock.ready ? ` · ${left > 0 ? t("pay-by", { left: span(left) }) : t("late")}` : ""));
  // With one channel there is nothing to choose.
  if (channel.length !== channels.length) channel.replaceChildren(...channels.map((name) => new Option(name)));
  channel.hidden = !waits || channels.length < 2;
  channel.disabled = paying;
  for (const [act, button] of Object.entries(buttons)) {
    const shown = act === "refund" ? data.status === "paid" : waits;
    const unsure = sure?.act === act && performance.now() < sure.until;
    set(button, t(act === "pay" && paying ? "paying" : unsure ? `sure-${act}` : act));
    button.disabled = act === "pay" && (paying || !channels.length);
    if (!shown && document.activeElement === button) item.focus();
    button.hidden = !shown;
  }
}


export function drawOrders() {
  orders.forEach(drawOrder);
  $("mine").hidden = !orders.size;
}

/** Units of this buyer that count against the limit. */
export function held() {
  return [...orders.values()].reduce((sum, { data }) => sum + (HELD.includes(data.status) ? data.quantity : 0), 0);
}

// Another buyer has other orders.
changes.addEventListener("session", () => {
  orders.forEach((order) => { order.poll.stop(); order.item.remove(); });
  orders.clear();
  ordersJob.soon();
  changed(false);
});
