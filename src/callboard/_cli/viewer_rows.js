"use strict";
// The rows of the page: runs, batches, calls and model requests, in the order in which they are read.

let data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const OUTCOMES = ["ok", "error", "timeout", "deadline", "rejected", "cancelled", "interrupted", "open"];

/** An element; text is only ever set as text. */
function make(tag, className = "", text = "", attributes = {}) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

const number = (value) => value.toLocaleString("en");
const plural = (value, name) => `${number(value)} ${name}${value === 1 ? "" : "s"}`;

function duration(seconds) {
  if (seconds === 0) return "0 s";
  if (seconds < 0.0000995) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 0.00995) return `${(seconds * 1e3).toFixed(2)} ms`;
  if (seconds < 0.9995) return `${Math.round(seconds * 1e3)} ms`;
  if (seconds < 100) return `${seconds.toFixed(2)} s`;
  return `${number(Math.round(seconds))} s`;
}

const CHUNK = 50;
let rows = [];
let headings = [];
let chunks = [];
let runOf = new Map();
let calls = [];
let total = 1;

/** Elements of the timeline by key. An update of a live page keeps them: one may have the focus, or be under the pointer. */
let kept = new Map();
let left = new Map();
let places = new Map();

/** The element with a key, or a new one, as the next child of its parent. */
function keep(key, parent, create) {
  const element = left.get(key) ?? create();
  left.delete(key);
  kept.set(key, element);
  const place = places.get(parent) ?? 0;
  places.set(parent, place + 1);
  if (parent.children[place] !== element) parent.insertBefore(element, parent.children[place] ?? null);
  return element;
}

function stretch(className, start, end) {
  const element = make("i", className);
  element.style.setProperty("--s", start);
  element.style.setProperty("--e", end);
  return element;
}

/** A few rows, which the browser passes over while they are out of sight. */
function addChunk(key, parent) {
  const chunk = keep(key, parent, () => make("div", "chunk"));
  chunks.push(chunk);
  return chunk;
}

/** A text that gives way in its middle: names, arguments and ids differ at their ends. */
function clipped(className, text, end) {
  const characters = Array.from(text);
  const tail = Math.min(end, Math.floor(characters.length / 2));
  const element = make("span", className, "", { title: text });
  element.append(make("span", "head", characters.slice(0, characters.length - tail).join("")));
  element.append(make("span", "tail", characters.slice(characters.length - tail).join("")));
  return element;
}

/** Add a row; an element that shows the same source already, such as an ended call, stays as it is. */
function addRow(key, parent, row, look) {
  const element = keep(key, parent, () => make("button", "", "", { type: "button", tabindex: "-1" }));
  Object.assign(row, { element, index: rows.length, source: JSON.stringify(look.source) });
  element.dataset.row = row.index;
  rows.push(row);
  if (element.source === row.source) return;
  element.source = row.source;
  element.className = `${look.className} row`;
  const names = make("span", "name");
  names.append(clipped("label", look.name, 14), ...(row.id ? [clipped("id", row.id, 6)] : []));
  const track = make("span", "track");
  track.append(...look.marks());
  const ends = make("span", "ends");
  ends.append(...(look.word ? [make("span", "word", look.word)] : []), make("span", "time", duration(row.end - row.start)));
  element.replaceChildren(names, track, ends);
  if (row.kind === "call") element.dataset.call = row.index;
  element.setAttribute("aria-label", look.label);
}

const TICKS = 40;

/** Notes far enough apart for their ticks not to cover the bar; the details have all of them. */
function apart(notes, call) {
  if (notes.length <= TICKS) return notes;
  let last = -Infinity;
  return notes.filter((note) => note.time - last >= (call.end - call.start) / TICKS && ((last = note.time), true));
}

function marksOf(call) {
  const marks = [stretch(call.attempts.length || call.waits.length ? "extent" : "lone", call.start, call.end)];
  for (const wait of call.waits) marks.push(stretch("wait", wait.start, wait.end));
  for (const one of call.attempts) {
    const state = one.open ? " going" : one.error && call.outcome === "ok" ? " bad" : "";
    marks.push(stretch(`attempt${state}`, one.start, one.end));
  }
  const progress = call.notes.filter((note) => note.what === "progress");
  // The line of a call that went well ends with it: one that ends earlier would look as if the call stood still.
  if (progress.length) marks.push(stretch("progress", progress[0].time, call.outcome === "ok" ? call.end : progress.at(-1).time));
  for (const note of apart(call.notes.filter((note) => note.what !== "progress"), call)) marks.push(stretch("note", note.time, note.time));
  return marks;
}

function addCall(key, parent, call, run, batch) {
  const outcome = OUTCOMES.includes(call.outcome) ? call.outcome : "error";
  const times = call.attempts.length > 1 ? `×${call.attempts.length}` : "";
  const word = [call.outcome === "ok" ? "" : call.outcome, times].filter(Boolean).join(" ");
  const row = { ...call, kind: "call", run, batch };
  const notes = call.notes.map((note) => note.what);
  row.text = [
    `tool:${call.tool}`, `id:${call.id ?? ""}`, `outcome:${call.outcome}`, `error:${call.error ?? ""}`,
    `batch:${batch.number}`, ...notes.map((what) => `note:${what}`), ...call.attempts.map((one) => one.error ?? ""),
  ].join(" ").toLowerCase() + " ";
  const parts = [
    call.tool, call.id, call.outcome, call.error, duration(call.end - call.start),
    call.waited ? `waited ${duration(call.waited)}` : "", plural(call.attempts.length, "attempt"), ...notes,
  ];
  const look = { source: call, className: `bar ${outcome}`, name: call.label, word, marks: () => marksOf(call) };
  addRow(key, parent, row, { ...look, label: parts.filter(Boolean).join(", ") });
}

function addRequest(key, parent, request, run) {
  const row = { ...request, kind: "request", run, text: `model ${request.model} ${request.error ?? ""} `.toLowerCase() };
  const word = request.error ? "failed" : request.open ? "open" : request.calls ? plural(request.calls, "call") : "";
  const marks = () => [stretch(`attempt${request.open ? " going" : ""}`, request.start, request.end)];
  const label = `model request, ${request.model}, ${word}, ${duration(row.end - row.start)}`;
  const className = `request ${request.error ? "error" : "model"}`;
  addRow(key, parent, row, { source: request, className, name: request.model, word, marks, label });
}

function addMessage(key, parent, message, run) {
  const name = message.background ? `result of ${message.background}` : "message";
  const row = { ...message, kind: "message", run, name, text: `message ${message.background ?? ""} `.toLowerCase() };
  const marks = () => [stretch("lone", message.start, message.end)];
  const label = `${name} read, ${message.point}`;
  addRow(key, parent, row, { source: message, className: "request message", name, word: "read", marks, label });
}

function addHeading(key, parent, tag, title, more, start, end) {
  const element = keep(key, parent, () => {
    const made = make(tag, "row", "", { title: "Zoom to it" });
    made.addEventListener("click", () => show(made.heading.start, made.heading.end));
    return made;
  });
  const name = make("span", "name", title);
  name.append(make("span", "more", more));
  element.replaceChildren(name);
  const heading = { element, first: rows.length, last: rows.length, title, start, end };
  element.heading = heading;
  headings.push(heading);
  return heading;
}

function addRun(key, parent, run) {
  const calls = run.batches.flatMap((batch) => batch.calls);
  const all = [...calls, ...run.requests, ...run.messages];
  const start = run.start ?? Math.min(...all.map((one) => one.start));
  const end = run.end ?? all.reduce((latest, one) => Math.max(latest, one.end), start);
  const section = keep(key, parent, () => make("section", "", "", { "aria-label": run.title }));
  const told = [duration(end - start), ...run.about, plural(calls.length, "call")];
  const heading = addHeading(`${key}/h2`, section, "h2", run.title, told.join("  ·  "), start, end);
  const steps = [
    ...run.requests.map((request, place) => ({ start: request.start, key: `${key}/request ${place}`, request })),
    ...run.messages.map((message, place) => ({ start: message.start, key: `${key}/message ${place}`, message })),
    ...run.batches.map((batch) => ({ start: batch.calls[0].start, key: `${key}/batch ${batch.number}`, batch })),
  ].sort((one, other) => one.start - other.start);
  for (const { key: step, request, message, batch } of steps) {
    if (request) addRequest(step, addChunk(`${step}/chunk`, section), request, heading);
    else if (message) addMessage(step, addChunk(`${step}/chunk`, section), message, heading);
    else addBatch(step, section, batch, heading);
  }
  heading.last = rows.length;
  runOf.set(section, heading);
}

function addBatch(key, parent, batch, run) {
  const group = keep(key, parent, () => make("div", "", "", { role: "group", "aria-label": `batch ${batch.number}` }));
  const start = batch.calls[0].start;
  const end = batch.calls.reduce((latest, call) => Math.max(latest, call.end), start);
  const more = `${plural(batch.calls.length, "call")}  ·  ${duration(end - start)}`;
  const heading = addHeading(`${key}/h3`, group, "h3", `batch ${batch.number}`, more, start, end);
  for (let first = 0; first < batch.calls.length; first += CHUNK) {
    const chunk = addChunk(`${key}/chunk ${first}`, group);
    for (const [place, call] of batch.calls.slice(first, first + CHUNK).entries()) {
      addCall(`${key}/call ${first + place}`, chunk, call, run, batch);
    }
  }
  heading.last = rows.length;
}

function addPart(index, part) {
  const title = data.parts.length > 1 ? `part ${index + 1} of ${data.parts.length}  ·  ` : "";
  const element = keep(`${index}`, $("rows"), () => make("p", "part"));
  element.textContent = title + part.about;
  const first = rows.length;
  for (const run of part.runs) addRun(`${index}/${run.title}`, $("rows"), run);
  headings.push({ element, first, last: rows.length });
}

/** Make the timeline from the data, and remove the elements of an earlier timeline that are no longer in it. */
function build() {
  [left, kept, places] = [kept, new Map(), new Map()];
  [rows, headings, chunks, runOf] = [[], [], [], new Map()];
  for (const [index, part] of data.parts.entries()) addPart(index, part);
  for (const element of left.values()) element.remove();
  calls = rows.filter((row) => row.kind === "call");
  total = rows.reduce((latest, row) => Math.max(latest, row.end), 0) || 1;
}

build();
