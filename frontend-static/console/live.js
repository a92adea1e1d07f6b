// The live page of a sale: reads its figures as server-sent events, and shows them. docs/console.md explains the figures.

import { Chart, el, format, svg } from "./chart.js";
import { t } from "./language.js";

const main = document.querySelector("main[data-live]");
const $ = (id) => document.getElementById(id);
/** A stream that is silent for this long counts as dead: figures come every second or two, comments every 10 s. */
const SILENCE_MAX_MS = 25_000;
/** A hidden page stops watching after this time. A browser has few connections to one service. */
const HIDDEN_MS = 20_000;
const WAIT_MAX_MS = 30_000;
/** A page without input for this long stops watching, so that the session can expire although a page is open. */
const UNTOUCHED_MAX_MS = 60 * 60_000;

const ofShop = (...given) => new Chart($("charts"), ...given);
const chart = (...given) => new Chart($("operator-charts"), ...given);
const view = {
  winners: ofShop("winners", t("New winners", "新抢到"), t("a second", "每秒"), [["winners", t("winners", "抢到")]]),
  units: ofShop("units", t("Units of this sale", "本场抢购的数量"), t("units", "件"),
    [["sold", t("sold", "已售")], ["waiting", t("waiting for payment", "待付款")], ["paid", t("paid", "已付款")], ["left", t("left", "剩余")]]),
  requests: chart("requests", t("Requests at this instance", "本实例的请求"), t("a second", "每秒"), [["requests", t("requests", "请求")], ["accepted", t("accepted purchases", "接受的购买")]]),
  refusals: chart("refusals", t("Refusals at this instance, by reason", "本实例的拒绝（按原因）"), t("a second", "每秒")),
  stock: chart("stock", t("Stock", "库存"), t("units", "件"), [["redis", t("for sale in Redis", "Redis 可售")], ["postgresql", t("left in PostgreSQL", "PostgreSQL 剩余")]]),
  holds: chart("holds", t("Holds", "预留"), t("now", "当前"),
    [["unconfirmed", t("not yet committed", "尚未提交")], ["accepted", t("without an order yet, units", "尚无订单（件）")], ["unpaid", t("waiting for payment, units", "待付款（件）")]]),
  outbox: chart("outbox", t("Outbox", "发件箱"), t("rows of all sales", "所有抢购的行数"),
    [["pending", t("to be published", "待发布")], ["sent", t("published, no order yet", "已发布，尚无订单")], ["releasing", t("to go back to Redis", "待退回 Redis")], ["parked", t("parked", "搁置")]]),
  latency: chart("latency", t("Accepted purchases at this instance", "本实例接受的购买"), t("milliseconds", "毫秒"), [["p99", t("99 of 100 answered within", "99% 的回答时间")], ["wait", t("wait before work begins", "开始处理前的等待")]]),
  drift: chart("drift", t("Redis and PostgreSQL differ by", "Redis 与 PostgreSQL 的差异"), t("units", "件"), [["difference", t("difference", "差异")]]),
};

/** `units(ledger, status)` of the orders of one status; null while PostgreSQL gives no answer. */
const of = (ledger, status, what) => ledger?.orders.find((row) => row.status === status)?.[what] ?? (ledger ? 0 : null);

const STATUSES = {
  accepted: t("accepted", "已接受"), pending_payment: t("waiting for payment", "待付款"), paid: t("paid", "已付款"),
  refunding: t("refund under way", "退款中"), refunded: t("refunded", "已退款"), cancelled: t("cancelled", "已取消"), rejected: t("rejected", "已拒绝"),
};

/** What has become of the units, all of one snapshot: they add up to the stock, unless that is unlimited. */
function units(ledger) {
  if (!ledger) return null;
  const sum = (...statuses) => statuses.reduce((all, status) => all + of(ledger, status, "units"), 0);
  const [waiting, paid] = [sum("accepted", "pending_payment"), sum("paid", "refunding")];
  // Units of refunded orders that are kept came back, and are not for sale.
  const returned = sum("cancelled", "refunded");
  const sold = waiting + paid;
  const limited = ledger.total_stock >= 0;
  const left = limited ? ledger.stock - sum("accepted") : null;
  return { waiting, paid, returned, sold, left, won: sold + returned, kept: ledger.kept_units, later: ledger.held_back_units };
}

/** One sentence in which the units add up. */
function sumOf(ledger, { won, returned, sold, left, kept, later }) {
  const parts = [t(`${format(sold)} sold`, `已售 ${format(sold)}`)];
  if (left !== null) parts.push(t(`${format(left)} left`, `剩余 ${format(left)}`));
  if (later > 0) parts.push(t(`${format(later)} come later`, `${format(later)} 稍后开售`));
  if (kept > 0) parts.push(t(`${format(kept)} refunded and kept`, `${format(kept)} 退款并保留`));
  const all = format(ledger.total_stock);
  const stock = left === null ? "" : t(`${all} units in all: ${parts.join(", ")}. `, `共 ${all} 件：${parts.join("，")}。`);
  return stock + t(`${format(won)} won, less ${format(returned)} that came back, make ${format(sold)} sold.`,
    `抢到 ${format(won)}，减去退回的 ${format(returned)}，已售 ${format(sold)}。`);
}

/** Adds the figures of a moment to the charts. */
function add({ at_ms: at, instance, redis, ledger, drift }, draw) {
  const outbox = ledger?.outbox;
  const push = (name, figures) => view[name].push(at, figures, draw);
  push("requests", { requests: instance?.requests_per_s ?? null, accepted: instance?.accepted_per_s ?? null });
  push("refusals", instance?.refused_per_s ?? {});
  push("winners", { winners: redis?.winners_per_s ?? null });
  const { sold = null, waiting = null, paid = null, left = null } = units(ledger) ?? {};
  push("units", { sold, waiting, paid, left });
  const limited = ledger && ledger.total_stock >= 0;
  push("stock", { redis: redis?.available ?? null, postgresql: limited ? ledger.stock : null });
  push("holds", {
    unconfirmed: redis?.unconfirmed ?? null,
    accepted: of(ledger, "accepted", "units"),
    unpaid: of(ledger, "pending_payment", "units"),
  });
  push("outbox", {
    pending: outbox?.pending ?? null, sent: outbox?.sent ?? null,
    releasing: outbox?.releasing ?? null, parked: outbox?.parked ?? null,
  });
  push("latency", { p99: instance?.purchase_p99_ms ?? null, wait: instance?.purchase_wait_ms ?? null });
  push("drift", { difference: drift.difference_units });
}

const unlimited = (ledger, value) => (ledger && ledger.total_stock < 0 ? "unlimited" : format(value));
const say = (id, text) => { if ($(id).textContent !== text) $(id).textContent = text; };

/** The part of a sale that is refilled in Redis. */
function beingRefilled(redis, ledger) {
  const orders = ledger?.orders.reduce((sum, { orders }) => sum + orders, 0);
  return orders ? `${t("being refilled", "正在重新填充")}: ${Math.min(100, Math.floor((100 * redis.winners) / orders))} %` : t("being refilled", "正在重新填充");
}

/** Shows the present figures. */
function show({ at_ms, redis, ledger, queues, drift }) {
  say("tile-status", redis && !redis.serving ? beingRefilled(redis, ledger) : ledger?.phase ?? "–");
  const now = units(ledger);
  for (const name of ["won", "returned", "sold", "paid"]) say(`tile-${name}`, format(now?.[name]));
  say("tile-unpaid", format(now?.waiting));
  say("tile-left", unlimited(ledger, now?.left));
  say("sum", now ? sumOf(ledger, now) : "");
  steer(ledger);
  say("tile-winners", format(redis?.winners));
  say("tile-available", unlimited(ledger, redis?.available));
  say("tile-stock", unlimited(ledger, ledger?.stock));
  say("tile-parked", format(ledger?.outbox.parked));
  $("box-parked").classList.toggle("bad", ledger?.outbox.parked > 0);
  const drifts = ledger?.drift_alarm || (drift.at_rest && drift.difference_units !== null && drift.difference_units !== 0);
  say("tile-drift", drifts ? `${format(drift.difference_units)} units` : drift.difference_units === null ? "–" : drift.at_rest ? "none" : "moving");
  $("box-drift").classList.toggle("bad", Boolean(drifts));
  showOrders(ledger, at_ms);
  const rows = (queues ?? []).map(({ queue, messages }) =>
    el("tr", {}, el("th", { scope: "row" }, queue), el("td", { class: "number" }, format(messages))));
  $("queues").replaceChildren(...(queues ? rows : [el("tr", {}, el("td", { colspan: "2" }, t("RabbitMQ does not answer.", "RabbitMQ 没有回应。")))]));
}

/** Offers what can be done now. */
function steer(ledger) {
  if (!ledger || !$("steer")) return;
  $("steer").hidden = ledger.status === "closed";
  $("resume").hidden = ledger.status !== "paused";
  $("pause").hidden = ledger.status === "paused";
}

function showOrders(ledger, at) {
  if (!ledger) {
    $("orders").replaceChildren();
    say("orders-age", t("PostgreSQL does not answer in time.", "PostgreSQL 没有及时回应。"));
    return;
  }
  const most = Math.max(1, ...ledger.orders.map(({ orders }) => orders));
  const bar = (orders) => svg("svg", { class: "bar", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("rect", { width: (100 * orders) / most, height: 10 }));
  const rows = ledger.orders.map(({ status, orders, units }) => el("tr", {}, el("th", { scope: "row" }, STATUSES[status] ?? status),
    el("td", { class: "number" }, format(orders)), el("td", { class: "number" }, format(units)), el("td", {}, bar(orders))));
  $("orders").replaceChildren(...rows);
  const age = Math.max(0, Math.round((at - ledger.read_at_ms) / 1000));
  say("orders-age", t(`PostgreSQL was asked ${age} s ago.`, `${age} 秒前查询了 PostgreSQL。`));
}

/** Shows the state of the stream. Only changes are announced, so that a screen reader does not talk all the time. */
function connection(text, className = "") {
  say("connection", text);
  $("connection").className = `notice ${className}`;
  main.toggleAttribute("data-quiet", className === "bad");
}

let lastId = null;

/** Takes complete events out of a text that arrives in pieces. */
function parser(onFigures) {
  let rest = "";
  return (text) => {
    const blocks = (rest + text).split("\n\n");
    rest = blocks.pop();
    const many = blocks.map((block) => Object.fromEntries(block.split("\n").map((line) => {
      const at = line.indexOf(":");
      return [line.slice(0, at), line.slice(at + 1).trim()];
    }))).filter(({ event }) => event === "figures");
    many.forEach(({ id, data }, n) => {
      lastId = id;
      onFigures(JSON.parse(data), n === many.length - 1);
    });
  };
}

/** Reads one stream to its end. Returns the status with which it began, or 0. */
async function follow(abort) {
  let timer;
  const awake = (ms) => { clearTimeout(timer); timer = setTimeout(() => abort.abort(), ms); };
  try {
    awake(10_000);
    const headers = { Accept: "text/event-stream", ...(lastId && { "Last-Event-ID": lastId }) };
    const response = await fetch(main.dataset.live, { headers, signal: abort.signal });
    if (response.status !== 200) return response.status;
    const parse = parser((figures, isLast) => {
      connection(t("Figures come once a second.", "数据每秒更新。"), "good");
      add(figures, isLast);
      if (isLast) show(figures);
    });
    const decoder = new TextDecoder();
    const reader = response.body.getReader();
    for (;;) {
      awake(SILENCE_MAX_MS);
      const { done, value } = await reader.read();
      if (done) return 200;
      parse(decoder.decode(value, { stream: true }));
    }
  } catch {
    return 0;
  } finally {
    clearTimeout(timer);
    abort.abort();
  }
}

let watching = null;
let touched = Date.now();

/** Waits for input on a page that was left alone. */
async function used() {
  if (Date.now() - touched < UNTOUCHED_MAX_MS) return;
  connection(t("Paused, because nobody has touched the page for an hour. Press a key, or move the pointer, to go on.", "一小时内无人操作，已暂停。按任意键或移动指针继续。"));
  await new Promise((done) => addEventListener("touched", done, { once: true }));
}
for (const kind of ["pointermove", "pointerdown", "keydown"]) {
  addEventListener(kind, () => { touched = Date.now(); dispatchEvent(new Event("touched")); }, { passive: true });
}

/** Watches until there is nothing left to watch. After failures it waits longer. */
async function watch() {
  for (let fails = 0; ;) {
    while (document.hidden) await new Promise((done) => document.addEventListener("visibilitychange", done, { once: true }));
    await used();
    watching = new AbortController();
    const [began, status] = [Date.now(), await follow(watching)];
    if (status === 401) {
      location.assign(`/admin/sign-in?then=${encodeURIComponent(location.pathname)}`);
      return;
    }
    if (status === 404) {
      connection(t("The sale was removed.", "抢购已删除。"), "bad");
      return;
    }
    if (document.hidden) continue;
    // A stream that lasted has not failed: streams end after 15 minutes, and when an instance stops.
    fails = status === 200 || Date.now() - began > 30_000 ? 0 : fails + 1;
    if (status !== 200) connection(t("No figures come; trying again.", "没有收到数据，正在重试。"), "bad");
    const wait = Math.min(1000 * 2 ** fails, WAIT_MAX_MS) * (0.5 + Math.random());
    await new Promise((done) => setTimeout(done, wait));
  }
}

let unseen;
document.addEventListener("visibilitychange", () => {
  clearTimeout(unseen);
  if (document.hidden) unseen = setTimeout(() => watching?.abort(), HIDDEN_MS);
});
void watch();
