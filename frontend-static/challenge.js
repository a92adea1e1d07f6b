// The check before a purchase: a picture, a slider, or a calculation by this device. It gives a pass, which a purchase spends.

import { $, addTexts, api, backoff, changes, clock, jitter, job, kept, problem, session, set, sleep, span, t, timeOfDay } from "./front.js";

addTexts({
  "check-sign-in": ["Sign in first: the check is tied to your name.", "请先登录：验证与账号绑定。"],
  "check-early": ["It opens shortly before the start, and takes a few seconds.", "开抢前不久开放，只需几秒钟。"],
  "check-early-at": ["It opens at {at}, and takes a few seconds.", "{at} 开放，只需几秒钟。"],
  "check-loading": ["Getting the check …", "正在获取验证…"],
  "check-open": ["The check is open: do it now, so that you are ready.", "验证已开放，请现在完成，做好准备。"],
  "checking": ["Checking …", "正在验证…"],
  "check-done": ["Done: you are ready. Valid until {at}.", "验证通过，准备就绪。有效期至 {at}。"],
  "check-wrong": ["That was not right. Here is a new one.", "验证未通过，已换一个，请再试。"],
  "check-expired": ["The check has run out. Here is a new one.", "验证已过期，已换一个新的。"],
  "check-rest": ["That were many pictures. The next one comes in {left}; the way without a picture is open.", "图片请求过多，{left} 后可再换一张；也可改用无图片验证。"],
  "check-idle": ["The check has run out. Ask for a new one when you are ready.", "验证已过期，准备好后请重新获取。"],
  "check-no-worker": ["This browser cannot do the calculation. Please use the picture, or another browser.", "此浏览器无法进行计算，请使用图片验证或更换浏览器。"],
  "task-image": ["Type the {n} characters of the picture.", "请输入图中的 {n} 个字符。"],
  "task-slider": ["Drag the piece into its gap. By keyboard: arrow keys, then Enter.", "请将拼块拖入缺口。键盘操作：用方向键移动，按回车确认。"],
  "task-work": ["This device calculates instead of you. There is nothing to do but wait.", "由本设备自动计算，您只需稍候。"],
  "alt-image": ["Distorted characters", "变形字符"], "alt-slider": ["Picture with a gap", "带缺口的图片"],
  "tries": ["{n} tries; {m} are usual", "已尝试 {n} 次，通常约需 {m} 次"],
  "moved": ["{x} of {max}", "{x} / {max}"],
  "new-picture": ["New picture", "换一张"], "new-check": ["New check", "重新获取"], "picture-instead": ["Use the picture", "改用图片验证"],
});

/** The service reports when the check opens. The page asks at most this long before the start. */
const ASK_EARLY_MS = 15 * 60_000;
/** Pages that waited for the check ask at random moments within this time, not all at once. */
const SPREAD_MS = 4000;
/** A pass must last beyond the start for at least this long. Otherwise it is renewed before the rush. */
const NEEDED_MS = 30_000;
/** A check or pass with less time than this counts as expired. */
const MARGIN_MS = 1000;
/** How many checks in a row are loaded for an inactive buyer. */
const UNASKED_MAX = 3;
const ATTEMPTS_MAX = 4;
const TRAIL_MAX = 500;

const main = document.querySelector("main");
const saleKind = main.dataset.captcha;
const path = `/api/v1/sales/${main.dataset.sale}`;

let page; // what the sale's page knows: `wants()` is "yes", "no" or "sign-in"; `startsAtMs()`
let current = null; // the check that waits for its answer
let pass = null;
let chosen = null; // the kind that the buyer has chosen
let opens = null; // when the check opens, as the service told for this start of the sale: `atMs`, `startsAtMs`
let waited = false; // whether the page was open before the check
let blocked = false; // no further check until the buyer asks for one
let restsUntil = 0; // no picture before then (`performance.now`): there were too many
let needless = false; // the service says that the sale asks for none
let isChecking = false;
let unasked = 0;
let failures = 0;
let told = [];

export function begin(sale) {
  page = sale;
  restore();
}

/** The pass to send with a purchase, or null. */
export const heldPass = () => (pass && pass.expires_at_ms - MARGIN_MS > clock.now() ? pass.pass : null);
/** Whether a purchase needs no check, or has passed it. */
export const isDone = () => needless || Boolean(heldPass());

/** Whether the buyer can do something for the check now. */
export const isOpen = () => !pass && (current !== null || blocked || isResting());

/** Whether the buyer is answering. */
export const isBusy = () => isChecking || Boolean(current && $("challenge-form").contains(document.activeElement));

/** This pass is spent or not valid: the next purchase needs a new one. */
export function dropPass(spent) {
  if (pass?.pass !== spent) return;
  pass = null;
  kept.set(slot(), null);
}

/** Moves the buyer to the next action. */
export function focus() {
  const controls = { image: "challenge-answer", slider: "challenge-slider" };
  $(controls[current?.kind] ?? (blocked ? "challenge-reload" : "challenge-title")).focus();
}

const slot = () => `seckill.pass.${main.dataset.sale}.${session.user()}`;

/** A pass outlives a reload. */
function restore() {
  forget();
  [pass, chosen, blocked, restsUntil, unasked, failures] = [JSON.parse(kept.get(slot()) ?? "null"), null, false, 0, 0, 0];
  tell();
}

/** When a pass is to be renewed: at its end. If it ends around the start, earlier, so that the new one does not. */
function renewAt({ expires_at_ms, got_at_ms }, startsAtMs) {
  const needed = startsAtMs + NEEDED_MS;
  const end = expires_at_ms - MARGIN_MS;
  return expires_at_ms >= needed ? end : Math.min(end, needed - (expires_at_ms - got_at_ms));
}

// Loading a check

const loadJob = job(async (self) => {
  const [token, who] = [session.token(), session.who()];
  if (page.wants() !== "yes" || current || pass) return Infinity;
  if (told[0] !== "check-wrong" && told[0] !== "check-expired") tell("check-loading");
  const body = chosen ? { kind: chosen } : {};
  const answer = await api(`${path}/challenges`, { method: "POST", token, body });
  if (who !== session.who()) return Infinity;
  if (answer.ok) {
    self.fails = 0;
    show(answer.data);
  } else if (answer.code === "not-started") {
    // By this device's clock it may already be open.
    const atMs = Math.max(answer.data.opens_at_ms ?? page.startsAtMs(), clock.now() + jitter(1000));
    opens = { atMs, startsAtMs: page.startsAtMs() };
  } else if (answer.code === "no-challenge") {
    needless = true;
  } else {
    tell(...problem(answer));
    if (answer.status === 429 && !isWork()) restsUntil = performance.now() + (answer.retryAfterMs ?? 0);
    if (answer.status === 0 || answer.status === 429 || answer.status >= 500) return self.again(answer);
    blocked = true;
  }
  draw();
  return Infinity;
});

/** Whether the check is, or will be, a calculation. */
const isWork = () => (current?.kind ?? chosen ?? saleKind) === "work";
const isResting = () => !current && !isWork() && performance.now() < restsUntil;

/** Shows a new check, and moves a buyer from the old one to it. */
function show(data) {
  const wasHere = $("challenge").contains(document.activeElement);
  current = data;
  if (data.answer_for_tests !== undefined) window.seckillChallenge = data;
  if (!["check-wrong", "check-expired"].includes(told[0])) tell(data.kind === "work" ? "checking" : "check-open");
  if (data.kind === "image") showImage(data);
  if (data.kind === "slider") showSlider(data);
  if (data.kind === "work") startWork(data);
  draw();
  if (wasHere) focus();
}

function forget() {
  // The controls are removed; keep a buyer who is using one of them here.
  if ($("challenge-form").contains(document.activeElement)) $("challenge-title").focus();
  stopWork();
  current = null;
}

/** Loads another check on the buyer's request. */
function reload(kind) {
  [chosen, blocked, unasked] = [kind, false, 0];
  forget();
  tell("check-loading");
  loadJob.soon();
  draw();
}

/** A check or a pass has expired: loads a new one, unless the buyer seems to be away. */
function expire() {
  const wasPass = Boolean(pass);
  forget();
  if (wasPass) dropPass(pass.pass);
  if (wasPass || unasked++ < UNASKED_MAX) {
    tell("check-expired");
    loadJob.soon(wasPass ? 0 : jitter(1000));
  } else {
    blocked = true;
    tell("check-idle");
  }
}

// Answering

async function submit(answer) {
  if (!current || isChecking) return;
  const [mine, token, who] = [current, session.token(), session.who()];
  isChecking = true;
  tell("checking");
  draw();
  let got;
  for (let attempt = 1; ; attempt++) {
    got = await api(`${path}/passes`, { method: "POST", token, body: { challenge_id: mine.challenge_id, answer } });
    if (attempt >= ATTEMPTS_MAX || (got.status !== 0 && got.status !== 429 && got.status < 500)) break;
    tell(...problem(got));
    await sleep(backoff(got, attempt));
  }
  isChecking = false;
  if (who !== session.who() || current !== mine) return draw();
  if (got.ok) return keep(got.data);
  if (got.code === "challenge-failed") tell("check-wrong");
  else tell(...problem(got));
  forget();
  failures++;
  loadJob.soon(failures > 3 ? jitter(3000) : 0);
  draw();
}

function keep(data) {
  const wasHere = $("challenge").contains(document.activeElement);
  forget();
  pass = { ...data, got_at_ms: clock.now() };
  [failures, unasked] = [0, 0];
  kept.set(slot(), JSON.stringify(pass));
  tell();
  draw();
  if (wasHere) $("buy").focus();
}

// The picture

function showImage({ image, length }) {
  $("challenge-image").src = image;
  $("challenge-answer").value = "";
  $("challenge-answer").maxLength = 2 * length; // spaces do not count
}

// The slider: its piece follows the pointer or arrow keys, and its moves are recorded.

let x = 0; // of the piece, in pixels of the picture
let trail = [];
let trailBegan = 0;
let drag = null;

function showSlider(data) {
  for (const [id, src] of [["challenge-image", data.image], ["challenge-piece", data.piece]]) $(id).src = src;
  [$("challenge-image").width, $("challenge-image").height] = [data.width, data.height];
  // Set through CSSOM, which the content policy allows.
  const part = (name, share) => $("challenge-form").style.setProperty(name, `${100 * share}%`);
  part("--piece-width", data.piece_size / data.width);
  part("--piece-y", data.piece_y / data.height);
  rest();
}

/** Puts the piece back to the left. */
function rest() {
  [x, trail, drag] = [0, [], null];
  drawPiece();
}

const maxX = () => current.width - current.piece_size;

function move(to, y) {
  if (!trail.length) trailBegan = performance.now();
  unasked = 0;
  x = Math.round(Math.min(Math.max(to, 0), maxX()));
  addPoint(trail, [Math.round(performance.now() - trailBegan), x, Math.round(y)], TRAIL_MAX);
  drawPiece();
}

/** Adds a point. If the trail is too long, every second point is removed, but not the first. */
function addPoint(points, point, max) {
  if (points.length >= max) points.splice(0, points.length, ...points.filter((_, i) => i % 2 === 0));
  points.push(point);
}

function drawPiece() {
  if (current?.kind !== "slider") return;
  const slider = $("challenge-slider");
  $("challenge-form").style.setProperty("--piece-x", `${(100 * x) / current.width}%`);
  slider.setAttribute("aria-valuemax", String(maxX()));
  slider.setAttribute("aria-valuenow", String(x));
  slider.setAttribute("aria-valuetext", t("moved", { x, max: maxX() }));
}

for (const id of ["challenge-slider", "challenge-piece"]) {
  const handle = $(id);
  handle.addEventListener("pointerdown", (event) => {
    if (current?.kind !== "slider" || isChecking || event.button !== 0) return;
    event.preventDefault(); // no dragging of the image, no selection
    handle.setPointerCapture(event.pointerId);
    $("challenge-slider").focus();
    rest();
    drag = { id: event.pointerId, x: event.clientX, y: event.clientY, scale: current.width / $("challenge-stage").clientWidth };
    move(0, 0);
  });
  handle.addEventListener("pointermove", (event) => {
    if (drag?.id !== event.pointerId || current?.kind !== "slider") return;
    move((event.clientX - drag.x) * drag.scale, (event.clientY - drag.y) * drag.scale);
  });
  handle.addEventListener("pointerup", (event) => {
    if (drag?.id !== event.pointerId) return;
    drag = null;
    // A press without a move is not an answer.
    if (x > 0) submit({ x, trail });
  });
  handle.addEventListener("pointercancel", () => drag && rest());
}

const STEPS = { ArrowRight: 2, ArrowUp: 2, ArrowLeft: -2, ArrowDown: -2, PageUp: 20, PageDown: -20 };

$("challenge-slider").addEventListener("keydown", (event) => {
  if (current?.kind !== "slider" || isChecking) return;
  if (event.key === "Enter") return $("challenge-form").requestSubmit();
  if ((event.key !== "Home" && !Object.hasOwn(STEPS, event.key)) || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  if (event.key === "Home") return rest();
  if (!trail.length) move(0, 0);
  move(x + STEPS[event.key], 0);
});

// The calculation

let worker = null;
let tries = 0;

function startWork({ prefix, difficulty }) {
  tries = 0;
  try {
    worker = new Worker(new URL("./work.js", import.meta.url), { type: "module" });
  } catch {
    return noWorker();
  }
  worker.addEventListener("message", ({ data }) => {
    tries = data.tries;
    if (data.nonce !== null) submit({ nonce: data.nonce });
    draw();
  });
  worker.addEventListener("error", noWorker);
  worker.postMessage({ prefix, difficulty });
}

function stopWork() {
  worker?.terminate();
  worker = null;
}

function noWorker() {
  forget();
  blocked = true;
  tell("check-no-worker");
  draw();
}

// Drawing

function tell(...what) {
  told = what;
}

/** Shows when the check opens, and loads it then. */
function plan() {
  const startsAtMs = page.startsAtMs();
  const atMs = opens?.startsAtMs === startsAtMs ? opens.atMs : null;
  if (clock.now() < (atMs ?? startsAtMs - ASK_EARLY_MS)) {
    waited = atMs !== null;
    tell(...(waited ? ["check-early-at", { at: timeOfDay(atMs) }] : ["check-early"]));
  } else if (!blocked && !loadJob.busy && loadJob.at === Infinity) {
    loadJob.soon(Math.random() * (waited ? SPREAD_MS : 300));
    waited = false;
  }
}

/** Draws the check in its present state. The sale's page calls this all the time. */
export function draw() {
  const wants = needless ? "no" : page.wants();
  $("challenge").hidden = wants === "no";
  if (wants !== "yes") {
    if (current) forget();
    tell(...(wants === "sign-in" ? ["check-sign-in"] : []));
  } else if (clock.ready) {
    if (pass ? clock.now() >= renewAt(pass, page.startsAtMs()) : current && clock.now() >= current.expires_at_ms - MARGIN_MS) {
      if (!isChecking) expire();
    } else if (!pass && !current) {
      plan();
    }
    if (isResting()) tell("check-rest", { left: span(restsUntil - performance.now()) });
    if (pass) tell("check-done", { at: timeOfDay(pass.expires_at_ms) });
  }
  const kind = current?.kind;
  const section = $("challenge");
  section.setAttribute("aria-busy", String(isChecking || loadJob.busy));
  if (pass) section.dataset.solved = "1";
  else delete section.dataset.solved;
  const [key, values] = told;
  set($("challenge-status"), key ? t(key, values) : "");
  $("challenge-form").hidden = wants !== "yes" || Boolean(pass) || !(current || blocked || isResting());
  set($("challenge-task"), kind ? t(`task-${kind}`, { n: current.length }) : "");
  $("challenge-stage").hidden = kind !== "image" && kind !== "slider";
  $("challenge-piece").hidden = $("challenge-slider").hidden = kind !== "slider";
  $("challenge-image").alt = kind === "image" || kind === "slider" ? t(`alt-${kind}`) : "";
  $("challenge-field").hidden = kind !== "image";
  $("challenge-work").hidden = kind !== "work";
  if (kind === "work") drawWork();
  $("challenge-submit").hidden = kind !== "image" && kind !== "slider";
  $("challenge-other").hidden = isWork();
  $("challenge-reload").hidden = (kind === "work" && saleKind === "work") || isResting();
  set($("challenge-reload"), t(saleKind === "work" ? "new-check" : isWork() ? "picture-instead" : "new-picture"));
}

function drawWork() {
  const usual = 2 ** current.difficulty;
  const format = (n) => n.toLocaleString(document.documentElement.lang);
  // A search has no memory: this is the part of all searches that would have ended by now.
  $("challenge-progress").value = 1 - Math.exp(-tries / usual);
  set($("challenge-tries"), t("tries", { n: format(tries), m: format(usual) }));
}

$("challenge-form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (current?.kind === "slider") return void (trail.length && submit({ x, trail }));
  const answer = $("challenge-answer").value.trim();
  if (answer) submit(answer);
  else $("challenge-answer").focus();
});
$("challenge-reload").addEventListener("click", () => reload(null));
$("challenge-other").addEventListener("click", () => reload("work"));
$("challenge").addEventListener("input", () => { unasked = 0; });
changes.addEventListener("session", restore);
changes.addEventListener("language", drawPiece);
