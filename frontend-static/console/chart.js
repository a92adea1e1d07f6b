// Lines over the last two minutes at most, drawn as SVG. Each chart describes itself in words, and also has its figures as a table.

import { locale, t } from "./language.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 600;
const HEIGHT = 180;
const PLOT = { left: 52, right: WIDTH - 8, top: 10, bottom: HEIGHT - 22 };
/** The time that a chart shows: as much as it has, in readable steps. */
const SPANS = [
  { ms: 30_000, whole: t("30 s ago", "30 秒前"), half: t("15 s ago", "15 秒前"), words: t("the last half minute", "最近半分钟") },
  { ms: 60_000, whole: t("1 min ago", "1 分钟前"), half: t("30 s ago", "30 秒前"), words: t("the last minute", "最近一分钟") },
  { ms: 120_000, whole: t("2 min ago", "2 分钟前"), half: t("1 min ago", "1 分钟前"), words: t("the last two minutes", "最近两分钟") },
];
/** The time that is kept. */
const KEPT_MS = SPANS.at(-1).ms;
/** Figures further apart are not joined by a line. They come every second, or every two seconds while purchases wait. */
const GAP_MS = 6_000;
/** Lines that have a colour and a dash of their own. */
const STYLES = 7;
/** Rows of the table. */
const ROWS = 20;

const still = matchMedia("(prefers-reduced-motion: reduce)");
const numbers = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });
export const format = (value) => (value === null || value === undefined ? "–" : numbers.format(value));

export function svg(name, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

export function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

/** Rounds up to the next of 1, 2 and 5 times a power of ten. */
function ceiling(value) {
  if (value <= 0) return 0;
  const ten = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * ten).find((step) => step >= value);
}

/** A chart of lines. `unit` follows the figures in words. */
export class Chart {
  #title;
  #unit;
  #lines = new Map();
  #points = [];
  #drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
  #legend = el("ul", { class: "legend" });
  #moving;
  #table = el("tbody");
  #head = el("tr");
  #details;

  constructor(parent, id, title, unit, lines = []) {
    this.#title = title;
    this.#unit = unit;
    const clip = svg("clipPath", { id: `${id}-plot` },
      svg("rect", { x: PLOT.left, y: 0, width: PLOT.right - PLOT.left, height: HEIGHT }));
    // Until the first figures arrive.
    this.#drawing.setAttribute("aria-label", `${title}, ${unit}.`);
    this.#moving = svg("g");
    const axis = svg("g", { class: "axis" });
    this.#drawing.append(svg("defs", {}, clip), axis, svg("g", { "clip-path": `url(#${id}-plot)` }, this.#moving));
    this.#details = el("details", { id: `${id}-table` }, el("summary", {}, t("As a table", "以表格显示")),
      el("div", { class: "table", role: "region", "aria-label": t(`${title}, as a table`, `${title}，表格`), tabindex: "0" },
        el("table", {}, el("thead", {}, this.#head), this.#table)));
    this.#details.addEventListener("toggle", () => this.#write());
    parent.append(el("figure", { class: "panel chart" }, el("h2", {}, title), this.#drawing, this.#legend, this.#details));
    for (const [key, label] of lines) this.#line(key, label);
  }

  /** The line of a key; the first figure of an unknown key creates it. */
  #line(key, label = key) {
    let line = this.#lines.get(key);
    if (line) return line;
    const style = `line s${this.#lines.size % STYLES}`;
    const path = svg("path", { class: style });
    const swatch = svg("svg", { viewBox: "0 0 32 12", "aria-hidden": "true" }, svg("path", { class: style, d: "M0 6H32" }));
    const value = el("b");
    this.#legend.append(el("li", {}, swatch, `${label} `, value));
    this.#moving.append(path);
    line = { label, path, value };
    this.#lines.set(key, line);
    return line;
  }

  /** Adds the figures of a moment; null is a gap. `draw` is false for all moments of a batch except the last. */
  push(at, figures, draw = true) {
    for (const key of Object.keys(figures)) this.#line(key);
    const before = this.#points.at(-1);
    this.#points.push({ at, figures });
    while (this.#points[0].at < at - KEPT_MS - 5000) this.#points.shift();
    if (draw) this.#draw(before ? at - before.at : 0);
  }

  #draw(step) {
    const newest = this.#points.at(-1);
    const span = SPANS.find(({ ms }) => newest.at - this.#points[0].at <= ms) ?? SPANS.at(-1);
    const shown = this.#points.flatMap(({ figures }) => Object.values(figures)).filter((value) => Number.isFinite(value));
    const [most, least] = [ceiling(Math.max(1, ...shown)), -ceiling(-Math.min(0, ...shown))];
    const x = (at) => PLOT.right - ((newest.at - at) / span.ms) * (PLOT.right - PLOT.left);
    const y = (value) => PLOT.bottom - ((value - least) / (most - least)) * (PLOT.bottom - PLOT.top);
    for (const [key, { path, value }] of this.#lines) {
      let last = -Infinity;
      let drawn = "";
      for (const { at, figures } of this.#points) {
        const figure = figures[key];
        if (!Number.isFinite(figure)) continue;
        // A line is interrupted where figures are missing or the stream was lost.
        drawn += `${at - last > GAP_MS ? "M" : "L"}${x(at).toFixed(1)} ${y(figure).toFixed(1)}`;
        last = at;
      }
      path.setAttribute("d", drawn);
      value.textContent = format(newest.figures[key]);
    }
    this.#axis(most, least, y, span);
    this.#describe(span);
    this.#write();
    // The lines glide to the left during a step. With reduced motion they stand still.
    const shift = (step / span.ms) * (PLOT.right - PLOT.left);
    if (step > 0 && step < 5000 && !still.matches && !document.hidden) {
      this.#moving.animate([{ transform: `translateX(${shift}px)` }, { transform: "none" }], { duration: step, easing: "linear" });
    }
  }

  #axis(most, least, y, span) {
    const axis = this.#drawing.querySelector(".axis");
    const marks = least < 0 ? [least, 0, most] : [0, most / 2, most];
    const lines = marks.flatMap((mark) => [
      svg("path", { class: mark === 0 ? "zero" : "grid", d: `M${PLOT.left} ${y(mark).toFixed(1)}H${PLOT.right}` }),
      svg("text", { x: PLOT.left - 6, y: y(mark) + 4, "text-anchor": "end" }, format(mark)),
    ]);
    const times = [[PLOT.left, span.whole, "start"], [(PLOT.left + PLOT.right) / 2, span.half, "middle"], [PLOT.right, t("now", "现在"), "end"]];
    const words = times.map(([at, text, anchor]) => svg("text", { x: at, y: HEIGHT - 6, "text-anchor": anchor }, text));
    axis.replaceChildren(...lines, ...words);
  }

  /** The picture's content in words, for people who cannot see it. */
  #describe(span) {
    const newest = this.#points.at(-1).figures;
    const parts = [...this.#lines].map(([key, { label }]) => {
      const all = this.#points.map(({ figures }) => figures[key]).filter((value) => Number.isFinite(value));
      return `${label} ${format(newest[key])}, ${t("at most", "最高")} ${format(all.length ? Math.max(...all) : null)}`;
    });
    this.#drawing.setAttribute("aria-label", `${this.#title}, ${this.#unit}, ${span.words}. ${parts.join("; ")}.`);
  }

  /** The last figures as a table, if it is open. */
  #write() {
    if (!this.#details.open) return;
    const heading = (text) => el("th", { scope: "col" }, text);
    this.#head.replaceChildren(heading(t("Time", "时间")), ...[...this.#lines.values()].map(({ label }) => heading(label)));
    const row = ({ at, figures }) => el("tr", {}, el("th", { scope: "row" }, new Date(at).toLocaleTimeString(locale, { timeStyle: "long" })),
      ...[...this.#lines.keys()].map((key) => el("td", { class: "number" }, format(figures[key]))));
    this.#table.replaceChildren(...this.#points.slice(-ROWS).reverse().map(row));
  }
}
