"use strict";
// The rows of the page: runs, batches, calls and model requests, in the order in which they are read.

const data = JSON.parse(document.getElementById("data").textContent);
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
const rows = [];
const headings = [];
const chunks = [];
const runOf = new Map();

function stretch(className, start, end) {
  const element = make("i", className);
  element.style.setProperty("--s", start);
  element.style.setProperty("--e", end);
  return element;
}

/** A few rows, which the browser passes over while they are out of sight. */
function addChunk(parent) {
  const chunk = make("div", "chunk");
  parent.append(chunk);
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

function addRow(parent, row, className, name, word) {
  const element = make("button", `${className} row`, "", { type: "button", tabindex: "-1" });
  const names = make("span", "name");
  names.append(clipped("label", name, 14), ...(row.id ? [clipped("id", row.id, 6)] : []));
  const track = make("span", "track");
  track.append(...row.marks);
  const ends = make("span", "ends");
  ends.append(...(word ? [make("span", "word", word)] : []), make("span", "time", duration(row.end - row.start)));
  element.append(names, track, ends);
  Object.assign(row, { element, index: rows.length });
  element.dataset.row = row.index;
  rows.push(row);
  parent.append(element);
  return element;
}

const TICKS = 40;

/** Notes far enough apart for their ticks not to cover the bar; the details have all of them. */
function apart(notes, call) {
  if (notes.length <= TICKS) return notes;
  let last = -Infinity;
  return notes.filter((note) => note.time - last >= (call.end - call.start) / TICKS && ((last = note.time), true));
}

function addCall(parent, call, run, batch) {
  const outcome = OUTCOMES.includes(call.outcome) ? call.outcome : "error";
  const marks = [stretch(call.attempts.length || call.waits.length ? "extent" : "lone", call.start, call.end)];
  for (const wait of call.waits) marks.push(stretch("wait", wait.start, wait.end));
  for (const one of call.attempts) {
    const state = one.open ? " going" : one.error && call.outcome === "ok" ? " bad" : "";
    marks.push(stretch(`attempt${state}`, one.start, one.end));
  }
  const progress = call.notes.filter((note) => note.what === "progress");
  if (progress.length) marks.push(stretch("progress", progress[0].time, progress.at(-1).time));
  for (const note of apart(call.notes.filter((note) => note.what !== "progress"), call)) marks.push(stretch("note", note.time, note.time));
  const times = call.attempts.length > 1 ? `×${call.attempts.length}` : "";
  const word = [call.outcome === "ok" ? "" : call.outcome, times].filter(Boolean).join(" ");
  const row = { ...call, kind: "call", run, batch, marks };
  const notes = call.notes.map((note) => note.what);
  row.text = [
    `tool:${call.tool}`, `id:${call.id ?? ""}`, `outcome:${call.outcome}`, `error:${call.error ?? ""}`,
    `batch:${batch.number}`, ...notes.map((what) => `note:${what}`), ...call.attempts.map((one) => one.error ?? ""),
  ].join(" ").toLowerCase() + " ";
  const element = addRow(parent, row, `bar ${outcome}`, call.label, word);
  element.dataset.call = row.index;
  const parts = [
    call.tool, call.id, call.outcome, call.error, duration(call.end - call.start),
    call.waited ? `waited ${duration(call.waited)}` : "", plural(call.attempts.length, "attempt"), ...notes,
  ];
  element.setAttribute("aria-label", parts.filter(Boolean).join(", "));
}

function addRequest(parent, request, run) {
  const marks = [stretch(`attempt${request.open ? " going" : ""}`, request.start, request.end)];
  const row = { ...request, kind: "request", run, marks, text: `model ${request.model} ${request.error ?? ""} `.toLowerCase() };
  const word = request.error ? "failed" : request.open ? "open" : request.calls ? plural(request.calls, "call") : "";
  const element = addRow(parent, row, `request ${request.error ? "error" : "model"}`, request.model, word);
  element.setAttribute("aria-label", `model request, ${request.model}, ${word}, ${duration(row.end - row.start)}`);
}

function addHeading(parent, tag, title, more, start, end) {
  const element = make(tag, "row", "", { title: "Zoom to it" });
  const name = make("span", "name", title);
  name.append(make("span", "more", more));
  element.append(name);
  element.addEventListener("click", () => show(start, end));
  parent.append(element);
  const heading = { element, first: rows.length, last: rows.length, title, start, end };
  headings.push(heading);
  return heading;
}

function addRun(parent, run) {
  const calls = run.batches.flatMap((batch) => batch.calls);
  const all = [...calls, ...run.requests];
  const start = run.start ?? Math.min(...all.map((one) => one.start));
  const end = run.end ?? all.reduce((latest, one) => Math.max(latest, one.end), start);
  const section = make("section", "", "", { "aria-label": run.title });
  const told = [duration(end - start), ...run.about, plural(calls.length, "call")];
  const heading = addHeading(section, "h2", run.title, told.join("  ·  "), start, end);
  const steps = [
    ...run.requests.map((request) => ({ start: request.start, request })),
    ...run.batches.map((batch) => ({ start: batch.calls[0].start, batch })),
  ].sort((one, other) => one.start - other.start);
  for (const { request, batch } of steps) {
    if (request) addRequest(addChunk(section), request, heading);
    else addBatch(section, batch, heading);
  }
  heading.last = rows.length;
  parent.append(section);
  runOf.set(section, heading);
}

function addBatch(parent, batch, run) {
  const group = make("div", "", "", { role: "group", "aria-label": `batch ${batch.number}` });
  const start = batch.calls[0].start;
  const end = batch.calls.reduce((latest, call) => Math.max(latest, call.end), start);
  const more = `${plural(batch.calls.length, "call")}  ·  ${duration(end - start)}`;
  const heading = addHeading(group, "h3", `batch ${batch.number}`, more, start, end);
  for (let first = 0; first < batch.calls.length; first += CHUNK) {
    const chunk = addChunk(group);
    for (const call of batch.calls.slice(first, first + CHUNK)) addCall(chunk, call, run, batch);
  }
  heading.last = rows.length;
  parent.append(group);
}

for (const [index, part] of data.parts.entries()) {
  const title = data.parts.length > 1 ? `part ${index + 1} of ${data.parts.length}  ·  ` : "";
  const element = make("p", "part", title + part.about);
  $("rows").append(element);
  const first = rows.length;
  for (const run of part.runs) addRun($("rows"), run);
  headings.push({ element, first, last: rows.length });
}

const calls = rows.filter((row) => row.kind === "call");
const total = rows.reduce((latest, row) => Math.max(latest, row.end), 0) || 1;
