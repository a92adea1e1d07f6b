// The header of every page: who is signed in.

import { $, changes, ready, session, set } from "./front.js";

function draw() {
  const user = session.user();
  $("account").hidden = !user;
  set($("user"), user ?? "");
}

$("sign-out").addEventListener("click", () => {
  session.set(null);
  document.querySelector("h1").focus(); // the button is gone
});
changes.addEventListener("session", draw);
draw();
if (!$("message")) ready(); // a page without a script of its own
