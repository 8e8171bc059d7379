// Controls of a run that is going on: a field for messages, and the open calls with a button each.

const field = make("input", "", "", { type: "text", maxLength: 10000, placeholder: "Write to the agent", autocomplete: "off" });
field.setAttribute("aria-label", "Message to the agent");
const form = make("form", "", "", { id: "say" });
form.append(field, make("button", "", "Send"));
const result = make("output", "", "", { id: "result" });
const openCalls = make("ul", "", "", { id: "open-calls" });
openCalls.setAttribute("aria-label", "Open calls");
const controls = make("section", "", "", { id: "controls", hidden: true });
controls.append(form, result, openCalls);
document.querySelector("header").append(controls);

/** Send a command to the run, show its result, and return whether the run performs it. */
async function command(path, content) {
  try {
    const headers = { Authorization: authorization(), "Content-Type": "application/json" };
    const response = await fetch(path, { method: "POST", headers, body: JSON.stringify(content) });
    const isAnswer = response.ok || response.status === 409;
    result.textContent = isAnswer ? (await response.json()).text : `The command was refused: ${await response.text()}.`;
    result.classList.toggle("bad", !response.ok);
    return response.ok;
  } catch {
    result.textContent = "The command has ended, or does not answer.";
    result.classList.add("bad");
    return false;
  }
}

field.addEventListener("keydown", (event) => event.stopPropagation()); // keys of the page are letters here
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const text = field.value;
  if (text.trim() && (await command("say", { text })) && field.value === text) field.value = "";
});

/** Show the calls of the run that have not ended. Their elements stay, so that a button keeps the focus. */
function showOpenCalls(fresh) {
  const isRunning = fresh?.live === "running";
  const all = isRunning ? fresh.parts.at(-1).runs.flatMap((run) => run.batches.flatMap((batch) => batch.calls)) : [];
  const open = all.filter((call) => call.outcome === "open" && call.id !== null);
  const items = new Map([...openCalls.children].map((item) => [item.dataset.id, item]));
  for (const call of open) {
    const item = items.get(call.id) ?? newItem(call.id);
    const background = call.notes.some((note) => note.what === "backgrounded") ? "in the background" : "";
    item.firstChild.textContent = [call.label, duration(call.end - call.start), background].filter(Boolean).join("  ·  ");
    items.delete(call.id);
  }
  for (const item of items.values()) item.remove();
  controls.hidden = !isRunning;
}

function newItem(id) {
  const item = make("li");
  const button = make("button", "", "Cancel", { type: "button" });
  button.addEventListener("click", async () => (button.disabled = await command("cancel", { id })));
  item.dataset.id = id;
  item.append(make("span"), button);
  openCalls.append(item);
  return item;
}

followers.push(showOpenCalls);
