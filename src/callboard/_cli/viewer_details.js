// What is known of one row.

let detailed;

function definitions(pairs) {
  const list = make("dl");
  for (const [name, value] of pairs) {
    if (value !== null && value !== undefined && value !== "") list.append(make("dt", "", name), make("dd", "", String(value)));
  }
  return list;
}

const PROGRESS = 6;

/** The notes, but of much progress only the beginning and the end. */
function fewer(notes) {
  const progress = notes.filter((note) => note.what === "progress");
  if (progress.length <= PROGRESS) return notes;
  const hidden = new Set(progress.slice(1, 1 - PROGRESS));
  const told = { ...progress[1], what: `progress, ${number(hidden.size)} times more`, facts: {} };
  return [...notes.filter((note) => !hidden.has(note)), told];
}

function story(row) {
  const events = [
    ...row.waits.map((one) => [one.start, "waits for a place", `${duration(one.end - one.start)}${one.error ? `, then gives up: ${one.error}` : ""}`]),
    ...row.attempts.map((one) => [one.start, `attempt ${one.number}`, [duration(one.end - one.start), one.open ? "still going" : "", one.error].filter(Boolean).join(", ")]),
    ...row.asks.map((one) => [one.start, `asks ${one.handler}`, [duration(one.end - one.start), one.waited === null ? "never began" : `waits ${duration(one.waited)}`, one.ahead ? `${one.ahead} before it` : "", one.open ? "still going" : "", one.error].filter(Boolean).join(", ")]),
    ...fewer(row.notes).map((note) => [note.time, note.what, Object.entries(note.facts).map(([name, value]) => `${name} ${value}`).join(", ")]),
  ].sort((one, other) => one[0] - other[0]);
  const list = make("ol");
  for (const [time, what, more] of [...events, [row.end, row.outcome === "open" ? "nothing more is known" : row.outcome, row.error ?? ""]]) {
    const item = make("li");
    const text = make("span", "", what);
    if (more) text.append(make("small", "", more));
    item.append(make("span", "time", `+${duration(Math.max(0, time - row.start))}`), text);
    list.append(item);
  }
  return list;
}

function detailsOf(row) {
  const where = [["run", row.run.title], ["begins at", duration(row.start)], ["took", duration(row.end - row.start)]];
  if (row.kind === "request") {
    const [read, written] = row.tokens;
    return [definitions([...where, ["error", row.error], ["calls", row.calls], ["input tokens", read], ["output tokens", written]])];
  }
  if (row.kind === "message") {
    const parts = [definitions([["run", row.run.title], ["read at", duration(row.start)], ["where", row.point], ["background call", row.background]])];
    if (row.content) parts.push(make("h3", "", "Content"), make("pre", "", row.content, { tabindex: "0", "aria-label": "Content" }));
    return parts;
  }
  const about = [["outcome", row.outcome], ["error", row.error], ["id", row.id], ["batch", row.batch.number], ...where];
  const parts = [definitions([...about, ["waited", row.waited ? duration(row.waited) : ""], ["attempts", row.attempts.length], ["goes on with", row.resumes]])];
  parts.push(make("h3", "", "What happened"), story(row));
  for (const [name, text] of [["Arguments", row.args], ["Result", row.result]]) {
    if (text) parts.push(make("h3", "", name), make("pre", "", text, { tabindex: "0", "aria-label": name }));
  }
  return parts;
}

function openDetail(row, again = false) {
  detailed?.element.removeAttribute("aria-current");
  detailed = row;
  row.element.setAttribute("aria-current", "true");
  const fit = make("button", "", "Zoom", { type: "button", title: "Zoom to it (f)" });
  fit.addEventListener("click", () => show(row.start, row.end, 0.2));
  const close = make("button", "", "Close", { type: "button", title: "Close (Esc)" });
  close.addEventListener("click", closeDetail);
  const head = make("div", "head");
  const title = make("h2", row.element.classList[1] ?? "", { call: row.tool, request: `${row.model}, asked`, message: row.name }[row.kind]);
  if (row.kind === "call") title.append(" ", make("span", "word", row.outcome));
  head.append(title, fit, close);
  refill($("detail"), head, ...detailsOf(row));
  if (!again) $("detail").scrollTop = 0;
  if ($("detail").hidden) {
    $("detail").hidden = false;
    drawAll();
  }
}

function closeDetail() {
  $("detail").hidden = true;
  detailed?.element.removeAttribute("aria-current");
  drawAll();
  setCurrent(detailed, true);
}
