// The list of the buyer's orders, on the page of a sale and on the page of all orders.

import { $, addTexts, changes, clock, el, isChinese, money, moment, set, span, t } from "./front.js";
import { cancel, canPay, channels, isFree, isPaying, isUnsure, orders, pay, refund, saleId, told } from "./orders.js";

addTexts({
  "order": ["Order {id}", "订单 {id}"], "units": ["{n} × {price}", "{n} 件 × {price}"], "sale": ["Sale {id}", "抢购 {id}"],
  "pay-by": ["{left} left to pay", "剩余付款时间 {left}"], "late": ["The time to pay is over", "付款时间已过"],
  "pay": ["Pay {amount}", "付款 {amount}"], "confirm": ["Confirm: nothing to pay", "确认（无需付款）"], "channel": ["Pay through", "付款渠道"],
  "paying": ["Paying …", "正在付款…"], "cancel": ["Cancel", "取消订单"], "refund": ["Refund", "退款"],
  "refunded-cents": ["{amount} given back", "已退还 {amount}"],
});

const ACTS = { pay: (order, row) => pay(order, row.channel.value), cancel, refund };
/** The rows by the order's id. */
const rows = new Map();

function build(order) {
  const nodes = { sale: el("a", "sale"), status: el("strong"), name: el("span", "name"), terms: el("span", "hint"), deadline: el("span", "deadline") };
  const buttons = {};
  for (const act of ["pay", "cancel", "refund"]) {
    // Both texts of a button have their room, so that it does not move under the pointer when it asks again.
    buttons[act] = el("button", `quiet ${act}`, el("span"), ...(act === "pay" ? [] : [el("span")]));
    buttons[act].type = "button";
  }
  const [channel, caption] = [el("select"), el("span")];
  const label = el("label", "", caption, channel);
  const what = saleId ? [] : [nodes.sale];
  const item = el("li", "", el("div", "what", ...what, nodes.status, nodes.name, nodes.terms, nodes.deadline),
    el("div", "acts", label, ...Object.values(buttons)));
  item.tabIndex = -1;
  const row = { item, nodes, buttons, channel, label, caption };
  for (const [act, button] of Object.entries(buttons)) button.addEventListener("click", () => ACTS[act](order, row));
  return row;
}

/** Shows the channels in a select. A single one is not a choice. */
export function drawChannels(select, label, caption, isHidden) {
  if (select.length !== channels.length) select.replaceChildren(...channels.map(({ name }) => new Option(name, name)));
  channels.forEach(({ title, titleZh }, i) => set(select.options[i], isChinese() ? titleZh : title));
  set(caption, t("channel"));
  label.hidden = isHidden || channels.length < 2;
}

function draw(order, { item, nodes, buttons, channel, label, caption }, isPaidAbove) {
  const { data } = order;
  const waits = data.status === "pending_payment";
  const left = data.expires_at_ms - clock.now();
  item.className = data.status;
  const name = t("order", { id: data.order_id.slice(-8) });
  const amount = money(data.amount_cents, data.currency);
  set(nodes.status, t(told(data)));
  set(nodes.name, `${name} · ${moment(data.created_at_ms)}`);
  const given = data.refunded_cents > 0 && data.refunded_cents < data.amount_cents && t("refunded-cents", { amount: money(data.refunded_cents, data.currency) });
  set(nodes.terms, t("units", { n: data.quantity, price: money(data.amount_cents / data.quantity, data.currency) }) + (given ? ` · ${given}` : ""));
  set(nodes.deadline, !waits || !clock.ready ? "" : left > 0 ? t("pay-by", { left: span(left) }) : t("late"));
  drawChannels(channel, label, caption, !waits || isFree(order) || isPaidAbove);
  channel.disabled = isPaying(order);
  for (const [act, button] of Object.entries(buttons)) {
    const isShown = act === "refund" ? data.status === "paid" : waits && !(act === "pay" && isPaidAbove);
    const unsure = isUnsure(order, act);
    const plain = act === "pay" && isFree(order) ? "confirm" : act === "pay" && isPaying(order) ? "paying" : act;
    const texts = act === "pay" ? [t(plain, { amount })] : [t(plain), t(`sure-${act}`)];
    texts.forEach((text, i) => {
      set(button.children[i], text);
      button.children[i].className = Boolean(i) === unsure ? "" : "off";
    });
    button.setAttribute("aria-label", `${texts[Number(unsure)]}: ${name}`);
    // Not `disabled`, which would lose the focus.
    button.setAttribute("aria-disabled", String(act === "pay" && !canPay(order)));
    if (!isShown && document.activeElement === button) item.focus();
    button.hidden = !isShown;
  }
  // An order without changes is drawn again only after a change of it or of the language.
  order.isStale = waits || Boolean(order.sure && performance.now() < order.sure.until);
}

/** Draws the list. The order `above` is paid at another place of the page. */
export function drawOrders(above = null) {
  for (const [id, row] of rows) {
    if (orders.has(id) && row.order === orders.get(id)) continue;
    row.item.remove();
    rows.delete(id);
  }
  for (const [id, order] of orders) {
    if (!rows.has(id)) {
      rows.set(id, { ...build(order), order });
      const older = [...rows.values()].filter((row) => row.order.data.created_at_ms < order.data.created_at_ms);
      older.sort((a, b) => b.order.data.created_at_ms - a.order.data.created_at_ms);
      $("orders").insertBefore(rows.get(id).item, older[0]?.item ?? null);
    }
    const row = rows.get(id);
    const isPaidAbove = above === id;
    if (order.isStale || row.isPaidAbove !== isPaidAbove) draw(order, row, isPaidAbove);
    row.isPaidAbove = isPaidAbove;
  }
  if (saleId) $("mine").hidden = !orders.size;
}

export const itemOf = (id) => rows.get(id)?.item;
/** Shows the name of each order's sale. */
export function drawSaleNames(names) {
  for (const { nodes, order } of rows.values()) {
    const name = names.get(order.data.sale_id);
    set(nodes.sale, name ?? t("sale", { id: order.data.sale_id }));
    if (name) nodes.sale.href = `/sales/${order.data.sale_id}`;
  }
}

changes.addEventListener("language", () => orders.forEach((order) => { order.isStale = true; }));
