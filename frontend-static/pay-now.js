// The order that waits for payment, in the place of the button to buy.

import { $, money, set, t } from "./front.js";
import { drawChannels } from "./order-list.js";
import { orders, pay } from "./orders.js";

/** A click that began before the button was there was meant for the button to buy. */
const GUARD_MS = 700;

let shownId = null;
let shownAt = 0;

/** Draws the state that page-state.js has found: the order, and its button. */
export function drawPayNow(order, state) {
  // The focus survives the removal of the button. Not on the button to buy: the next key would press it.
  if (!order && $("pay-now").contains(document.activeElement)) $("product").focus({ preventScroll: true });
  $("pay-now").hidden = !order;
  if (!order) {
    shownId = null;
    return;
  }
  if (shownId !== order.order_id) {
    const wasHere = document.activeElement === $("buy");
    [shownId, shownAt] = [order.order_id, performance.now()];
    if (wasHere) $("pay").focus({ preventScroll: true });
    $("timer").scrollIntoView({ block: "nearest" });
  }
  const channel = $("pay-channel");
  drawChannels(channel, $("pay-label"), $("pay-caption"), !state.hasChannel);
  const isLive = state.isLive && performance.now() - shownAt >= GUARD_MS;
  channel.disabled = !state.isLive;
  set($("pay"), t(state.label, { amount: money(order.amount_cents, order.currency) }));
  $("pay").setAttribute("aria-disabled", String(!isLive));
}

$("pay").addEventListener("click", () => {
  if ($("pay").getAttribute("aria-disabled") === "true") return;
  pay(orders.get(shownId), $("pay-channel").value);
});
