// Signing in, in development mode. A shop with its own sign-in stores the buyer's token, and this form is not shown.

import { $, api, changes, kept, say, sayProblem, session } from "./front.js";

/** A page on this machine counts as development without asking, so that viewing a page costs the service nothing. */
const LOCAL = /^(localhost|127\.\d+\.\d+\.\d+|\[::1\])$|\.localhost$/.test(location.hostname);
let offered = LOCAL && !kept.get("seckill.no-dev");

const draw = () => { $("sign-in").hidden = Boolean(session.token()) || !offered; };

/** Whether the form is on the page. */
export const isOffered = () => !$("sign-in").hidden;

const askForToken = (user, level) => api("/api/v1/dev/token", { method: "POST", body: { user, level } });

/** The buyer wants to sign in. */
export async function offer() {
  if (!offered && !kept.get("seckill.no-dev")) {
    // Outside development mode this address does not exist.
    const answer = await askForToken("nobody", 0);
    if (answer.status === 404) kept.set("seckill.no-dev", "1");
    else if (!answer.ok) return sayProblem(answer);
    offered = answer.ok;
    draw();
  }
  say("unauthenticated");
  if (isOffered()) $("sign-in").elements.user.focus();
}

$("sign-in").addEventListener("submit", async (event) => {
  event.preventDefault();
  const { user, level } = event.target.elements;
  const answer = await askForToken(user.value, Number(level.value));
  if (answer.ok) {
    say();
    session.set(answer.data.token);
    return ($("buy") ?? document.querySelector("h1")).focus(); // the form is gone
  }
  if (answer.status === 404) {
    kept.set("seckill.no-dev", "1");
    offered = false;
    draw();
  }
  sayProblem(answer);
});

changes.addEventListener("session", draw);
draw();
