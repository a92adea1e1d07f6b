// The page of all orders: one page of the list after another, and the names of the sales.

import { $, addTexts, api, changes, clock, job, jitter, messages, ready, session, set, t } from "./front.js";
import { drawOrders, drawSaleNames, itemOf } from "./order-list.js";
import { facts, hasMore, more, orders } from "./orders.js";
import "./sign-in.js";

addTexts({ "no-orders": ["You have no orders yet.", "您还没有订单。"], "sign-in-first": ["Sign in to see your orders.", "登录后可查看订单。"] });

// A message holds until an order changes.
messages.standing = () => JSON.stringify([session.user(), ...facts().map(({ order_id, status, payment }) => [order_id, status, payment?.status])]);

/** The products' names by sale; null if the sale no longer exists. */
const names = new Map();
let isListed = false;
/** Whether the orders of the present buyer were read. */
let isRead = false;

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
  draw();
  return jitter(50);
});

function draw() {
  const signedIn = Boolean(session.token());
  const isBusy = signedIn && !isRead;
  $("orders").setAttribute("aria-busy", String(isBusy));
  $("orders").hidden = !orders.size && !isBusy;
  $("none").hidden = orders.size > 0 || isBusy;
  set($("none"), t(signedIn ? "no-orders" : "sign-in-first"));
  $("more").hidden = !hasMore();
  drawOrders();
  drawSaleNames(names);
  if (!isBusy) ready();
}

$("more").addEventListener("click", more);
changes.addEventListener("listed", ({ detail }) => {
  isRead = true;
  namesJob.soon();
  draw();
  // The button may have disappeared with the last page.
  if (detail) itemOf(detail.order_id)?.focus();
});
changes.addEventListener("session", () => {
  isRead = false;
  draw();
});
for (const what of ["language", "orders"]) changes.addEventListener(what, draw);
document.addEventListener("visibilitychange", () => document.hidden || clock.sync(1));
clock.sync(1);
draw();
setInterval(draw, 250);
