// The list of sales: the published cards with their present state, and newer sales.

import { $, addTexts, api, changes, clock, el, jitter, job, money, moment, ready, say, sayProblem, set, span, t } from "./front.js";

addTexts({
  "scheduled": ["Coming up", "即将开始"], "open": ["Open now", "正在抢购"], "paused": ["Paused", "已暂停"],
  "gone": ["Sold out", "已抢光"], "over": ["Ended", "已结束"],
  "starts-in": ["Starts in {left}", "{left} 后开始"], "opens-at": ["Opens {at}", "{at} 开始"],
  "ends-in": ["Ends in {left}", "{left} 后结束"], "ends-at": ["Until {at}", "{at} 结束"],
  "no-sales": ["There are no sales at the moment.", "暂时没有抢购活动。"],
});

const DAY_MS = 86_400_000;
const RANK = ["open", "scheduled", "paused", "gone", "over"];
/** The time that matters, and its texts. */
const WHEN = {
  scheduled: ["starts_at_ms", "starts-in", "opens-at"], open: ["ends_at_ms", "ends-in", "ends-at"], gone: ["ends_at_ms", "ends-in", "ends-at"],
};
/** Within a rank: what ends or starts next; of those that are over, the last one. */
const order = ({ how, sale }) => (how === "scheduled" ? sale.starts_at_ms : how === "over" ? -sale.ends_at_ms : sale.ends_at_ms);
/** Each shown sale by its id: its terms, and the parts of its card. */
const shown = new Map();

let isTimed = false;

// Until the server's clock is known, the device's clock is good enough to sort the cards.
const now = () => (clock.ready ? clock.now() : Date.now());

function standing({ status, sold_out, starts_at_ms, ends_at_ms }) {
  if (status === "ended" || now() >= ends_at_ms) return "over";
  if (status === "paused") return "paused";
  if (clock.ready || !status ? now() < starts_at_ms : status === "scheduled") return "scheduled";
  return sold_out ? "gone" : "open";
}

const partsOf = (item) => ({ item, badge: item.querySelector(".badge"), when: item.querySelector(".when") });

/** The card of a sale that was created after the page was published: without a picture. */
function card(sale) {
  const link = el("a", "panel card", el("span", "blank"), el("span", "badge"), el("h2", "name", sale.product.name),
    el("span", "price"), el("span", "when"));
  link.href = `/sales/${sale.id}`;
  const price = link.querySelector(".price");
  Object.assign(price.dataset, { cents: sale.price_cents, currency: sale.currency });
  set(price, money(sale.price_cents, sale.currency));
  return partsOf(el("li", "", link));
}

function draw() {
  const ranked = [...shown.values()].map((one) => ({ ...one, how: standing(one.sale) }));
  ranked.sort((a, b) => RANK.indexOf(a.how) - RANK.indexOf(b.how) || order(a) - order(b));
  for (const { sale, badge, when, item, how } of ranked) {
    set(badge, t(how));
    badge.className = `badge ${how}`;
    item.className = how;
    const [at, near, far] = WHEN[how] ? [sale[WHEN[how][0]], ...WHEN[how].slice(1)] : [];
    const isSoon = at - now() < DAY_MS;
    if (isSoon) askTime();
    set(when, !at ? "" : isSoon ? t(near, { left: span(at - now()) }) : t(far, { at: moment(at) }));
  }
  const list = $("sales");
  list.hidden = !shown.size;
  const items = ranked.map(({ item }) => item);
  if (items.length === list.children.length && items.every((item, i) => list.children[i] === item)) return;
  const focused = document.activeElement;
  list.replaceChildren(...items);
  if (list.contains(focused)) focused.focus({ preventScroll: true });
}

/** The page asks for the server's clock only if it shows a countdown. */
function askTime() {
  if (!isTimed) clock.sync(1);
  isTimed = true;
}

function update(sales) {
  const ids = new Set(sales.map(({ id }) => id));
  for (const id of shown.keys()) if (!ids.has(id)) shown.delete(id);
  for (const sale of sales) shown.set(sale.id, { ...(shown.get(sale.id) ?? card(sale)), sale });
}

for (const item of $("sales").children) {
  const { sale, startsAtMs, endsAtMs } = item.dataset;
  shown.set(Number(sale), { ...partsOf(item), sale: { starts_at_ms: Number(startsAtMs), ends_at_ms: Number(endsAtMs) } });
}
draw();
changes.addEventListener("language", draw);
// A timer that slept is not reliable.
document.addEventListener("visibilitychange", () => { isTimed = isTimed && document.hidden; });
setInterval(draw, 500);

job(async (self) => {
  const answer = await api("/api/v1/sales");
  if (answer.ok) {
    update(answer.data);
    draw();
  }
  ready();
  if (!answer.ok) return sayProblem(answer), self.again(answer);
  self.fails = 0;
  say(shown.size ? undefined : "no-sales");
  return jitter(30_000);
}, 0);
