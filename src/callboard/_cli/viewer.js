// What a person does: search, move, open, zoom.

let shown = rows;

/** Replace the content of an element; the focus stays on the button at the same place. */
function refill(box, ...children) {
  const focusable = () => [...box.querySelectorAll("button, pre")];
  const place = focusable().indexOf(document.activeElement);
  box.replaceChildren(...children);
  if (place >= 0) focusable()[place]?.focus({ preventScroll: true });
}

function search() {
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const exact = (word) => word.includes(":") && rows.some((row) => row.text.includes(`${word} `));
  const needles = words.map((word) => (exact(word) ? `${word} ` : word));
  const fits = (row) => needles.every((needle) => row.text.includes(needle));
  shown = words.length ? rows.filter(fits) : rows;
  const visible = new Set(shown);
  for (const row of rows) row.element.hidden = !visible.has(row);
  const before = new Uint32Array(rows.length + 1);
  for (const row of rows) before[row.index + 1] = before[row.index] + visible.has(row);
  for (const one of headings) one.element.hidden = words.length > 0 && before[one.first] === before[one.last];
  for (const chunk of chunks) {
    const count = words.length ? [...chunk.children].filter((row) => !row.hidden).length : chunk.children.length;
    chunk.style.setProperty("--rows", count);
    chunk.hidden = count === 0;
  }
  const found = shown.filter((row) => row.kind === "call").length;
  $("count").textContent = words.length ? `${number(found)} of ${number(calls.length)}` : plural(calls.length, "call");
  $("nothing").hidden = shown.length > 0;
  if (!visible.has(current)) setCurrent(shown[0]);
}

function searchFor(text) {
  $("search").value = $("search").value === text ? "" : text;
  search();
}

/** The row that has the focus, or will have it when the timeline has. */
let current;
let scrolledByUs = false;

function setCurrent(row, focus = false) {
  current?.element.setAttribute("tabindex", "-1");
  current = row;
  if (!row) return;
  row.element.setAttribute("tabindex", "0");
  if (!focus) return;
  row.element.focus({ preventScroll: true });
  scrolledByUs = true;
  row.element.scrollIntoView({ block: "nearest" });
  requestAnimationFrame(() => requestAnimationFrame(() => (scrolledByUs = false)));
  if (row.end < view.from || row.start > view.from + view.span) setView((row.start + row.end - view.span) / 2, view.span);
  if (!$("detail").hidden) openDetail(row);
}

function move(by) {
  const place = shown.indexOf(current);
  const next = document.activeElement === current?.element ? place + by : place;
  setCurrent(shown[Math.min(shown.length - 1, Math.max(0, next))], true);
}

// ---- keys

const KEYS = {
  j: () => move(1),
  k: () => move(-1),
  ArrowDown: () => move(1),
  ArrowUp: () => move(-1),
  Home: () => setCurrent(shown[0], true),
  End: () => setCurrent(shown.at(-1), true),
  ArrowLeft: () => pan(-0.15),
  ArrowRight: () => pan(0.15),
  "+": () => zoom(1 / 1.5),
  "=": () => zoom(1 / 1.5),
  "-": () => zoom(1.5),
  0: () => setView(0, total),
  f: () => current && show(current.start, current.end, 0.2),
  r: () => current && show(current.run.start, current.run.end),
  "/": () => $("search").select(),
  "?": () => toggleKeys(),
  Escape: () => ($("detail").hidden ? clearSearch() : closeDetail()),
};
const ON_CONTROLS = new Set(["Escape", "/", "?", "j", "k", "+", "=", "-", "0"]);

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target === $("search")) {
    if (event.key === "Escape") clearSearch();
    else if (event.key === "Enter" || event.key === "ArrowDown") setCurrent(current, true);
    else return;
  } else {
    const elsewhere = event.target !== document.body && !$("rows").contains(event.target);
    if (!Object.hasOwn(KEYS, event.key) || (elsewhere && !ON_CONTROLS.has(event.key))) return;
    KEYS[event.key]();
  }
  event.preventDefault();
}

function clearSearch() {
  $("search").value = "";
  search();
  if (document.activeElement === $("search")) setCurrent(current, true);
}

function toggleKeys() {
  $("keys").hidden = !$("keys").hidden;
  $("help").setAttribute("aria-expanded", String(!$("keys").hidden));
}

// ---- pointers

const share = (event, element) => {
  const box = element.getBoundingClientRect();
  return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
};

function onWheel(event) {
  const above = $("overview").contains(event.target) || $("axis").contains(event.target);
  if (event.ctrlKey || event.metaKey || above) {
    const at = $("overview").contains(event.target) ? 0.5 : share(event, $("axis"));
    zoom(1.0015 ** event.deltaY, at);
  } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
    pan((event.deltaX || event.deltaY) / 800);
  } else return;
  event.preventDefault();
}

/** Follow a pointer that is down until it is up; a short way is a click. */
function onDrag(element, begin, along, click) {
  element.addEventListener("pointerdown", (down) => {
    if (down.button !== 0 || !begin(down)) return;
    let dragged = false;
    const follow = (event) => {
      dragged ||= Math.abs(event.clientX - down.clientX) > 4;
      if (dragged) along(down, event);
    };
    const end = (up) => {
      removeEventListener("pointermove", follow);
      removeEventListener("pointerup", end);
      removeEventListener("pointercancel", end);
      if (dragged) addEventListener("click", swallow, { capture: true, once: true });
      setTimeout(() => removeEventListener("click", swallow, { capture: true }));
      if (!dragged && up.type === "pointerup") click(up);
    };
    addEventListener("pointermove", follow);
    addEventListener("pointerup", end);
    addEventListener("pointercancel", end);
  });
}

function swallow(event) {
  event.stopPropagation();
  event.preventDefault();
}

let grabbed = 0;
onDrag(
  $("rows"),
  (down) => down.target.closest(".track") && ((grabbed = view.from), true),
  (down, event) => setView(grabbed - ((event.clientX - down.clientX) / $("axis").clientWidth) * view.span, view.span),
  () => {},
);
onDrag(
  $("overview"),
  () => true,
  (down, event) => {
    const [start, end] = [share(down, $("overview")), share(event, $("overview"))].sort((one, other) => one - other);
    setView(start * total, (end - start) * total);
  },
  (up) => setView(share(up, $("overview")) * total - view.span / 2, view.span),
);

$("rows").addEventListener("click", (event) => {
  const element = event.target.closest(".bar, .request");
  if (!element) return;
  const row = rows[element.dataset.row];
  setCurrent(row, true);
  openDetail(row);
});
document.querySelector("main").addEventListener("wheel", onWheel, { passive: false });
document.querySelector("main").addEventListener("scroll", () => scrolledByUs || follow());
document.addEventListener("keydown", onKey);
$("search").addEventListener("input", search);
$("zoom-in").addEventListener("click", () => zoom(1 / 1.5));
$("zoom-out").addEventListener("click", () => zoom(1.5));
$("zoom-all").addEventListener("click", () => setView(0, total));
$("help").addEventListener("click", toggleKeys);

// ---- themes

const THEMES = { system: "light dark", dark: "dark", light: "light" };
let theme = "system";
$("theme").addEventListener("click", () => {
  const names = Object.keys(THEMES);
  theme = names[(names.indexOf(theme) + 1) % names.length];
  document.documentElement.style.colorScheme = THEMES[theme];
  $("theme").textContent = `Theme: ${theme}`;
  drawOverview();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawOverview);

// ---- around the timeline

function legend() {
  const items = [];
  for (const outcome of OUTCOMES) {
    const count = calls.filter((call) => call.outcome === outcome).length;
    if (!count) continue;
    const button = make("button", outcome, "", { type: "button", title: `Search for outcome:${outcome}` });
    button.append(make("b"), `${outcome} ${number(count)}`);
    button.addEventListener("click", () => searchFor(`outcome:${outcome}`));
    items.push(button);
  }
  for (const [className, text] of [["wait", "queue wait"], ["retried", "failed attempt of a call that went well"], ["tick", "note"], ["progress", "progress"], ["model", "model request"]]) {
    const item = make("span", className === "model" ? "model" : "ok");
    item.append(make("b", className), text);
    items.push(item);
  }
  refill($("legend"), ...items);
}

function fillTable(id, { headings, rows }, nameOf) {
  if (!rows.length) return;
  const head = make("tr");
  head.append(...headings.map((text) => make("th", "", text, { scope: "col" })));
  const body = make("tbody");
  for (const [name, ...cells] of rows) {
    const line = make("tr");
    const first = make("th", "", "", { scope: "row" });
    first.append(nameOf(name));
    line.append(first, ...cells.map((text) => make("td", "", text)));
    body.append(line);
  }
  const table = make("thead");
  table.append(head);
  refill($(id), table, body);
}

function searchButton(tool) {
  const button = make("button", "", tool, { type: "button", title: "Search for it" });
  button.addEventListener("click", () => searchFor(`tool:${tool}`));
  return button;
}

/** Everything outside of the timeline, and which of its rows are shown. */
function tell() {
  const runs = data.parts.reduce((sum, part) => sum + part.runs.length, 0);
  $("about").textContent = [plural(runs, "run"), plural(calls.length, "call"), `${number(data.failed)} failed`, duration(total)].join("  ·  ");
  $("statements").replaceChildren(...data.parts.map((part) => make("li", part.whole ? "" : "bad", part.statement)));
  $("peak").textContent = `up to ${number(most("attempts"))}, ${number(most("waits"))}`;
  legend();
  fillTable("tools", data.tools, searchButton);
  fillTable("actors", data.actors, (name) => name);
  search();
}

/** Show newer data of the same recording. The search, the zoom, the focus and the open details stay. */
function update(fresh) {
  const whole = view.span >= total;
  data = fresh;
  build();
  const rowOf = new Map(rows.map((row) => [row.element, row]));
  current = rowOf.get(current?.element);
  tell();
  setCurrent(current ?? calls[0] ?? rows[0]);
  const opened = rowOf.get(detailed?.element);
  if (opened && !$("detail").hidden && opened.source !== detailed.source) openDetail(opened, true);
  view.span = whole ? total : view.span;
  setView(view.from, view.span);
  drawOverview();
}

tell();
setCurrent(calls[0] ?? rows[0]);
if (runOf.size > 1) show(rows[0]?.run.start ?? 0, rows[0]?.run.end ?? total);
new ResizeObserver(drawAll).observe($("axis"));
drawAll();
window.callboard = { total: () => calls.length, visibleBars: () => shown.filter((row) => row.kind === "call").length };
