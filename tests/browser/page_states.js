(async () => {
  const linked = (name) => import(document.querySelector(`link[rel=modulepreload][href*="${name}"]`).href);
  const { held, nextWave, payStage, shown, standing, untilAsk } = await linked("page-state");
  const { knows } = await linked("front");

  const [START, END, SECOND] = [1_000_000, 2_000_000, 1000];
  const state = (status, more = {}) => ({ status, starts_at_ms: START, ends_at_ms: END, sold_out: false, ...more });
  const order = (status, more = {}) => ({
    order_id: "one", status, quantity: 1, amount_cents: 100, created_at_ms: START, expires_at_ms: START + 900 * SECOND, isFresh: true, isPaying: false,
    changedAt: 500, ...more,
  });
  const paid = (status, reason) => ({ payment: { payment_id: `p-${status}`, channel: "sandbox", status, reason } });
  const base = {
    now: START + 10 * SECOND, tick: 1000, state: state("open"), lost: 0, missing: false, from: "loading", since: 0, offline: false, isOutdated: false, perUser: 1, minLevel: 0,
    waves: [], user: "ann", level: 0, offersSignIn: true, check: "none", orders: [], canPay: true, click: null, restUntil: 0, wantsMore: false, note: null,
  };

  // Single states, in words.
  const rows = [
    // what                            known                                                        label       live   message         timer
    ["nothing is known yet", { state: null }, ["loading", false, undefined, undefined]],
    ["there is no such sale", { state: null, missing: true }, ["loading", false, "unknown-sale", undefined]],
    ["an hour before", { now: START - 3600 * SECOND, state: state("scheduled") }, ["before", false, undefined, "starts-in"]],
    ["half a minute before", { now: START - 30 * SECOND, state: state("scheduled") }, ["before", false, "soon", "starts-in"]],
    ["the start has passed, and no answer says so", { state: state("scheduled") }, ["opening", false, undefined, "starts-in"]],
    ["it has just opened", { from: "opening" }, ["buy", true, "go", "ends-in"]],
    ["loaded when it is open", {}, ["buy", true, undefined, "ends-in"]],
    ["opened, signed out", { from: "before", user: null }, ["sign-in", false, undefined, "ends-in"]],
    ["opened, with a check", { from: "before", check: "open" }, ["check-first", false, "go-check", "ends-in"]],
    ["sold out at once", { from: "before", state: state("open", { sold_out: true }) }, ["gone", false, "now-gone", "ends-in"]],
    ["a wave will come", { state: state("open", { sold_out: true }), waves: [{ atMs: START + 60 * SECOND, units: 3 }] }, ["gone", false, undefined, "wave-in"]],
    ["units are back", { from: "gone" }, ["buy", true, "back", "ends-in"]],
    ["loaded when it is paused", { state: state("paused") }, ["paused", false, undefined, "ends-in"]],
    ["paused before the start", { now: START - 30 * SECOND, state: state("paused") }, ["paused", false, undefined, "starts-in"]],
    ["closed by hand", { from: "open", state: state("ended") }, ["over", false, "ended", "is-over"]],
    ["its end has passed", { now: END, from: "open" }, ["over", false, "ended", "is-over"]],
    ["the buyer's level is too low", { minLevel: 3 }, ["level", false, undefined, "ends-in"]],
    ["the same, signed out", { minLevel: 3, user: null }, ["sign-in", false, undefined, "ends-in"]],
    ["the terms have changed", { isOutdated: true }, ["loading", false, undefined, "ends-in"]],
    ["a click is on its way", { click: "asking" }, ["asking", false, "say-asking", "ends-in"]],
    ["a click rests", { restUntil: 2000 }, ["resting", false, undefined, "ends-in"]],
    ["reserved", { orders: [order("accepted")] }, ["loading", false, "accepted", "pay-left", "writing"]],
    ["to be paid", { orders: [order("pending_payment")] }, ["loading", false, "reserved", "pay-left", "pay-amount"]],
    ["nothing to pay", { orders: [order("pending_payment", { amount_cents: 0 })] }, ["loading", false, "reserved", "pay-left", "confirm"]],
    ["the button to pay was pressed", { orders: [order("pending_payment", { isPaying: true })] }, ["loading", false, "say-paying", "pay-left", "paying"]],
    ["at the bank", { orders: [order("pending_payment", paid("waiting"))] }, ["loading", false, "say-paying", "pay-left", "paying"]],
    ["declined", { orders: [order("pending_payment", paid("failed", "declined"))] }, ["loading", false, "say-declined", "pay-left", "pay-again"]],
    ["nearly late", { now: START + 850 * SECOND, orders: [order("pending_payment")] }, ["loading", false, "hurry", "pay-left", "pay-amount"]],
    ["late", { now: START + 901 * SECOND, orders: [order("pending_payment")] }, ["loading", false, "say-late", "pay-left", "late"]],
    ["paid", { orders: [order("paid")] }, ["have", false, "say-paid", "ends-in"]],
    ["paid long ago", { orders: [order("paid", { isFresh: false })] }, ["have", false, undefined, "ends-in"]],
    ["not paid in time", { orders: [order("cancelled", { reason: "expired" })] }, ["buy", true, "expired", "ends-in"]],
    ["more is allowed", { perUser: 3, orders: [order("pending_payment")] }, ["more", true, "reserved", "pay-left", "pay-amount"]],
    ["the sale closed before the payment", { state: state("ended"), orders: [order("pending_payment")] }, ["loading", false, "reserved", "pay-left", "pay-amount"]],
    ["without a network", { offline: true }, ["buy", true, "offline", "ends-in"]],
  ];
  const broken = [];
  for (const [what, known, [label, isLive, message, timer, payLabel]] of rows) {
    const view = shown({ ...base, ...known });
    const got = [view.button.label, view.button.isLive, view.message?.key, view.timer?.label, view.pay?.label];
    if (JSON.stringify(got) !== JSON.stringify([label, isLive, message, timer, payLabel])) broken.push(`${what}: ${JSON.stringify(got)}`);
  }

  // Every pair of state and event, by rules.
  const each = (choices) => Object.entries(choices).reduce(
    (all, [name, values]) => all.flatMap((one) => values.map((value) => ({ ...one, [name]: value }))), [{}]);
  const times = { now: [START - 3600 * SECOND, START - 5 * SECOND, START + 10 * SECOND, END + 1] };
  const states = [null, ...["scheduled", "open", "paused", "ended"].flatMap((status) => [state(status), state(status, { sold_out: true })])];
  const lives = [
    [], [order("accepted")], [order("pending_payment")], [order("pending_payment", paid("waiting"))], [order("pending_payment", paid("failed", "declined"))],
    [order("paid", paid("succeeded"))], [order("cancelled", { reason: "expired" })], [order("rejected", { reason: "out-of-stock" })], [order("refunding")],
  ];
  const begins = each({ ...times, state: states, user: [null, "ann"], minLevel: [0, 2], check: ["none", "open", "done"], orders: lives, perUser: [1, 3], click: [null, "asking"] });
  const events = {
    "the start passes": { now: START + SECOND },
    "an answer says that it is open": { now: START + SECOND, state: state("open") },
    "the last unit is sold": { state: state("open", { sold_out: true }) },
    "a unit comes back": { state: state("open") },
    "a pause": { state: state("paused") },
    "a close": { state: state("ended") },
    "the end passes": { now: END + 1 },
    "the start moves": { state: state("scheduled", { starts_at_ms: END - 5 * SECOND }) },
    "a sign-out": { user: null, orders: [] },
    "another buyer signs in": { user: "bob", level: 5, orders: [] },
    "a click": { click: "asking" },
    "its answer": { click: null, orders: [order("accepted")] },
    "the order is written": { orders: [order("pending_payment")] },
    "the bank has the payment": { orders: [order("pending_payment", paid("waiting"))] },
    "the bank declines": { orders: [order("pending_payment", paid("failed", "declined"))] },
    "the bank takes the money": { orders: [order("paid", paid("succeeded"))] },
    "the time to pay ends": { orders: [order("cancelled", { reason: "expired" })] },
    "the network goes": { offline: true },
    "the terms change": { isOutdated: true },
    "the check is done": { check: "done" },
  };
  const seen = { phases: new Set(), labels: new Set(), messages: new Set() };
  const rules = {
    "a message that one can buy, and a grey button": (w, v) => !["go", "back"].includes(v.message?.key) || v.button.isLive,
    "a live button in a sale that sells nothing": (w, v) => !v.button.isLive
      || (v.phase === "open" && w.user !== null && w.level >= w.minLevel && ["none", "done"].includes(w.check) && !w.click && !w.isOutdated && held(w.orders) < w.perUser),
    "a coming start that is not coming": (w, v) => v.message?.key !== "soon" || (v.phase === "before" && w.state.starts_at_ms - w.now <= v.message.values.s * SECOND),
    "an end that has not come": (w, v) => !["over", "ended"].includes(v.message?.key) || v.phase === "over",
    "a label of another phase": (w, v) => !["before", "opening", "paused", "gone", "over"].includes(v.button.label) || v.button.label === v.phase,
    "a refusal by level for someone else": (w, v) => v.button.label !== "level" || (w.user !== null && w.level < w.minLevel),
    "an unpaid order without a way to pay": (w, v) => Boolean(v.order) === Boolean(v.pay) && (!v.pay || v.timer?.label === "pay-left" || ["loading", "missing"].includes(v.phase)),
    "two buttons in one place": (w, v) => !v.order || v.button.isHidden || v.phase === "open" || Boolean(w.click),
    "a second payment of one order": (w, v) => !v.pay?.isLive || !["created", "sending", "waiting"].includes(v.order.payment?.status),
    "a payment after its time": (w, v) => !v.pay?.isLive || w.now < v.order.expires_at_ms,
    "a decline that is not": (w, v) => v.message?.key !== "say-declined" || payStage(v.order, w.now) === "declined",
    "yours before it is paid": (w, v) => !(v.steps?.done === 3 || v.message?.key === "say-paid") || w.orders.some(({ status }) => status === "paid"),
    "a choice that is too large": (w, v) => v.quantityMax === 0 || (v.quantityMax >= 2 && v.quantityMax <= w.perUser - held(w.orders)),
    "a message without a network": (w, v) => !w.offline || v.message.key === "offline",
    "a note of another state": (w, v) => v.message?.key !== "note" || w.note.of === standing(w),
    "a page that waits too long": (w, v) => ["missing", "over"].includes(v.phase) || untilAsk(w, 9, 1) <= 2000,
    "a text that does not exist": (w, v) => [v.button.label, v.button.why, v.message?.key, v.timer?.label, v.pay?.label]
      .every((key) => !key || key === "note" || knows(key)),
  };
  let worlds = 0;
  const reported = new Set();
  for (const begin of begins) {
    const before = { ...base, ...begin };
    const note = { key: "note", kind: "bad", of: standing(before), until: Infinity };
    const first = shown(before).phase;
    for (const [event, change] of Object.entries(events)) {
      const after = { ...before, ...change, note };
      after.from = shown(after).phase === first ? "loading" : first;
      after.since = after.tick;
      const view = shown(after);
      worlds++;
      seen.phases.add(view.phase);
      seen.labels.add(view.button.label);
      if (view.message) seen.messages.add(view.message.key);
      for (const [rule, holds] of Object.entries(rules)) {
        if (reported.has(rule) || holds(after, view)) continue;
        reported.add(rule);
        broken.push(`${rule}: ${event}, in ${JSON.stringify(begin)}`);
      }
    }
  }

  // The moment of the first question after the start.
  for (const left of [1, 500, 1500]) {
    for (const random of [0, 0.5, 1]) {
      const asked = untilAsk({ ...base, now: START - left, state: state("scheduled") }, 0, random) - left;
      if (!(asked >= 40 && asked <= 100) && left < 1300) broken.push(`asked ${asked} ms after the start`);
    }
  }
  if (nextWave({ waves: [{ atMs: 5 }, { atMs: 3 }, { atMs: 1 }], now: 2 }).atMs !== 3) broken.push("the next wave");
  return { broken, worlds, phases: [...seen.phases], labels: [...seen.labels], messages: [...seen.messages] };
})()
