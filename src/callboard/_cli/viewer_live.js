// The page of a command that is running: it asks for newer data, and shows it.

const PAUSE = 500;
const TRIES = 5;
const STATES = {
  running: "Live: the run is going on.",
  waiting: "Live: no run is going on at the moment.",
  ended: "The run has ended.",
  long: "The recording is too long to be shown live. The page shows its beginning.",
};

function say(text, bad = false) {
  $("live").hidden = false;
  $("live").classList.toggle("bad", bad);
  if ($("live").textContent !== text) $("live").textContent = text;
}

// A click needs its element until the pointer is up: updates wait for that.
let held = false;
addEventListener("pointerdown", () => (held = true), true);
for (const type of ["pointerup", "pointercancel"]) addEventListener(type, () => setTimeout(() => (held = false)), true);

const after = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

/** The token is in the fragment of the address, which no browser sends anywhere. */
const authorization = () => `Bearer ${location.hash.slice(1)}`;
const ask = (seen) => fetch("data", { cache: "no-store", headers: { Authorization: authorization(), "If-None-Match": seen } });

/** Functions that get newer data, too, and `null` when there will be none. */
const followers = [];

/** Show the answer, and return the milliseconds that this took. */
async function take(response) {
  const fresh = await response.json();
  while (held) await after(20);
  const since = performance.now();
  update(fresh);
  for (const follow of followers) follow(fresh);
  say(STATES[fresh.live]);
  return performance.now() - since;
}

async function watch() {
  let seen = "";
  for (let failed = 0; failed < TRIES; ) {
    let took = 0;
    try {
      const response = await ask(seen);
      if (response.status === 401) return say("The address lacks the token that the command printed.", true);
      if (response.ok) [took, seen] = [await take(response), response.headers.get("ETag") ?? ""];
      failed = response.ok || response.status === 304 ? 0 : failed + 1;
    } catch {
      failed += 1;
    }
    await after(Math.max(PAUSE, 10 * took));
  }
  for (const follow of followers) follow(null);
  say("The command has ended, or does not answer. The page shows the last known state.", true);
}

watch();
