// Which seconds are shown: zoom, axis and overview.

const view = { from: 0, span: total };
const narrowest = () => Math.max(1e-5, total / 1e7);

function show(start, end, margin = 0.03) {
  const room = (end - start) * margin;
  setView(start - room, end - start + 2 * room);
}

function setView(from, span) {
  view.span = Math.min(total, Math.max(narrowest(), span));
  view.from = Math.min(total - view.span, Math.max(0, from));
  drawView();
}

function zoom(factor, share = 0.5) {
  const at = view.from + view.span * share;
  const span = Math.min(total, Math.max(narrowest(), view.span * factor));
  setView(at - span * share, span);
}

const pan = (share) => setView(view.from + view.span * share, view.span);

function step(width) {
  const rough = (view.span / Math.max(1, width)) * 120; // twice the width of a long label: the last one stands left of its line
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
}

function drawView() {
  const { from, span } = view;
  const style = $("rows").style;
  const axis = $("axis");
  const every = step(axis.clientWidth);
  const first = Math.ceil(from / every - 1e-9);
  const pixels = axis.clientWidth / span;
  style.setProperty("--from", from);
  style.setProperty("--span", span);
  style.setProperty("--step", `${every * pixels}px`);
  style.setProperty("--shift", `${(first * every - from) * pixels}px`);
  const digits = Math.max(0, -Math.floor(Math.log10(every) + 1e-9));
  const labels = [];
  for (let tick = first; tick * every <= from + span; tick++) {
    const label = make("span", "", `${(tick * every).toFixed(digits)} s`);
    const left = (tick * every - from) * pixels;
    label.style.left = `${left}px`;
    if (left > axis.clientWidth - 48) label.classList.add("last");
    labels.push(label);
  }
  axis.replaceChildren(...labels);
  $("window").style.left = `${(from / total) * 100}%`;
  $("window").style.width = `${(span / total) * 100}%`;
  $("window").hidden = span >= total;
}

/** How many attempts or waits there are at a time, for each pixel of the whole. Each covers at least some pixels. */
function levels(width, of, least) {
  const changes = new Float64Array(width + 1);
  // Both ends are rounded down: where one attempt follows another, no pixel has both.
  const pixel = (time) => Math.max(0, Math.floor((time / total) * width));
  for (const call of calls) {
    for (const one of call[of]) {
      const start = Math.min(width - 1, pixel(one.start));
      changes[start] += 1;
      changes[Math.max(start + least, Math.min(width, pixel(one.end)))] -= 1;
    }
  }
  let level = 0;
  return changes.map((change) => (level += change));
}

function drawOverview() {
  const canvas = $("overview").querySelector("canvas");
  // In pixels of the device: at a ratio of 1.5, columns of CSS pixels would have seams.
  const [width, height] = [canvas.clientWidth, canvas.clientHeight].map((one) => Math.max(1, Math.round(one * (devicePixelRatio || 1))));
  canvas.width = width;
  canvas.height = height;
  const running = levels(width, "attempts", 1);
  const waiting = levels(width, "waits", 0);
  const peak = Math.max(1, ...running.map((level, x) => level + waiting[x]));
  const brush = canvas.getContext("2d");
  // Two properties of the canvas hold the colours, because custom properties are not resolved.
  const { color: ran, outlineColor: waited } = getComputedStyle(canvas);
  const unit = (height - 2) / peak;
  for (let x = 0; x < width; x++) {
    brush.fillStyle = waited;
    brush.globalAlpha = 0.45;
    brush.fillRect(x, height - (running[x] + waiting[x]) * unit, 1, waiting[x] * unit);
    brush.globalAlpha = 1;
    brush.fillStyle = ran;
    brush.fillRect(x, height - running[x] * unit, 1, running[x] * unit);
  }
}

/** How many there are at the same time, at most. */
function most(of) {
  const changes = calls.flatMap((call) => call[of].flatMap((one) => [[one.start, 1], [one.end, -1]]));
  changes.sort((one, other) => one[0] - other[0] || one[1] - other[1]);
  let [level, peak] = [0, 0];
  for (const [, change] of changes) peak = Math.max(peak, (level += change));
  return peak;
}

/** Keep to the runs that are in sight, unless everything is shown. */
function follow() {
  const box = document.querySelector("main").getBoundingClientRect();
  const [x, top] = [box.left + 4, document.querySelector(".sticky").getBoundingClientRect().bottom + 4];
  const found = [top, box.bottom - 4].map((y) => runOf.get(document.elementFromPoint(x, y)?.closest("section"))).filter(Boolean);
  const isShown = (run) => run.end >= view.from && run.start <= view.from + view.span;
  if (view.span < total && found.length && !found.some(isShown)) show(found[0].start, found[0].end);
}

function drawAll() {
  drawView();
  drawOverview();
}
