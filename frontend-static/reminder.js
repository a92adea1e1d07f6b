// A reminder of a sale's start: a calendar file (RFC 5545), made by the page itself, so that it costs the service nothing.

/** The longest line, in bytes; longer ones are folded. */
const LINE_MAX = 75;

const utc = (ms) => `${new Date(ms).toISOString().slice(0, 19).replace(/[-:]/g, "")}Z`;
const text = (value) => value.replace(/[\\;,]/g, "\\$&").replace(/\r?\n/g, "\\n");

/** Folds a line into pieces of whole characters. */
function fold(line) {
  const pieces = [""];
  let bytes = 0;
  for (const character of line) {
    const size = new TextEncoder().encode(character).length;
    if (bytes + size > LINE_MAX) {
      pieces.push(" ");
      bytes = 1;
    }
    pieces[pieces.length - 1] += character;
    bytes += size;
  }
  return pieces.join("\r\n");
}

/** The file for an event, which rings ten minutes before it. */
export function calendar({ id, name, url, startsAtMs, endsAtMs, nowMs }) {
  const lines = [
    "BEGIN:VCALENDAR", "VERSION:2.0", "PRODID:-//Seckill//Sale//EN", "BEGIN:VEVENT", `UID:${text(id)}`, `DTSTAMP:${utc(nowMs)}`,
    `DTSTART:${utc(startsAtMs)}`, `DTEND:${utc(endsAtMs)}`, `SUMMARY:${text(name)}`, `URL:${url}`,
    "BEGIN:VALARM", "ACTION:DISPLAY", "TRIGGER:-PT10M", `DESCRIPTION:${text(name)}`, "END:VALARM", "END:VEVENT", "END:VCALENDAR", "",
  ];
  return lines.map(fold).join("\r\n");
}
