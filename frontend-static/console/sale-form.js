// Planning a sale: the rows of waves, which the form sends as one field.

const WAVES_MAX = 100;
const list = document.querySelector("#waves");
const field = document.querySelector("input[name=waves]");
const add = document.querySelector("#add-wave");

/** Writes the rows into the field. An incomplete row is no wave; the browser reports it when the form is sent. */
function write() {
  const waves = [...list.children].flatMap((row) => {
    const [after, units] = [".after", ".units"].map((name) => row.querySelector(name));
    if (after.value === "" || units.value === "") return [];
    return [{ after_s: Math.round(Number(after.value) * 60), units: Number(units.value) }];
  });
  field.value = waves.length > 0 ? JSON.stringify(waves) : "";
  add.disabled = list.children.length >= WAVES_MAX;
}

add.addEventListener("click", () => {
  list.append(document.querySelector("#wave").content.cloneNode(true));
  list.lastElementChild.querySelector("input").focus();
  write();
});
list.addEventListener("input", write);
list.addEventListener("click", (event) => {
  if (!event.target.matches(".remove")) return;
  event.target.closest("li").remove();
  add.focus();
  write();
});
// A browser may restore the field from an earlier visit, but not the rows.
write();
