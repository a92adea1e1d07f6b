// Filters by time: fields show the reader's zone, and the address gets moments in ms.

import { momentOf } from "./times.js";

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.method !== "get") return;
  const fields = [...form.querySelectorAll("input[data-kind=time]")].filter((field) => field.value !== "");
  if (fields.length === 0) return;
  event.preventDefault();
  const query = new URLSearchParams(new FormData(form));
  for (const field of form.querySelectorAll("input[data-kind=time]")) query.delete(field.name);
  for (const field of fields) {
    const { ms, error } = momentOf(field);
    if (error) {
      form.querySelector("output").textContent = error;
      field.focus();
      return;
    }
    query.set(field.name, String(ms));
  }
  for (const [name, value] of [...query]) if (value === "") query.delete(name);
  location.assign(`${new URL(form.action).pathname}?${query}`);
});
