"use strict";
// Everything works without this file. It adds: times in the local zone, parts of a page that refresh themselves, live
// progress of a run, suggestions of names, and buttons that cannot be pressed twice.

const root = document.documentElement.dataset.root;
const pause = (seconds) => new Promise((done) => setTimeout(done, seconds * 1000));

// Times -----------------------------------------------------------------------------------------------------------------

// In the format of the server, so that nothing moves when the script has loaded.
const clock = new Intl.DateTimeFormat("sv-SE", {
  year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
});
const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

function tellTimes(within) {
  for (const time of within.querySelectorAll("time[datetime]")) {
    const when = new Date(time.dateTime);
    if (Number.isNaN(when.getTime())) continue;
    if (!("relative" in time.dataset)) {
      time.textContent = clock.format(when);
      continue;
    }
    const seconds = Math.round((when.getTime() - Date.now()) / 1000);
    const [unit, size] = units.find(([, size]) => Math.abs(seconds) >= size) || units[3];
    const distance = `${Math.trunc(Math.abs(seconds) / size)}\u00a0${unit}`;
    time.textContent = time.dataset.relative === "for" ? distance : seconds > 0 ? `in ${distance}` : `${distance} ago`;
  }
}

// Numbers in the format of the server, without a line break before their units.
const counted = (number) => Math.trunc(number).toLocaleString("en-US");
function timed(seconds) {
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole}\u00a0s`;
  const minutes = Math.trunc(whole / 60);
  return minutes < 60 ? `${minutes}\u00a0min\u00a0${whole % 60}\u00a0s` : `${Math.trunc(minutes / 60)}\u00a0h\u00a0${minutes % 60}\u00a0min`;
}
function sized(bytes) {
  if (bytes < 1000) return `${bytes}\u00a0B`;
  const [unit, size] = [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]].find(([, size]) => bytes >= size);
  return `${(bytes / size).toFixed(1)}\u00a0${unit}`;
}

// Characters that hide or reorder text, as the server shows them.
const visible = (text) => text.replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu, (each) => `\\u${each.codePointAt(0).toString(16).padStart(4, "0")}`);

// Messages, visible and for screen readers --------------------------------------------------------------------------

function announce(words) {
  document.getElementById("announced").textContent = words;
}

function trouble(words) {
  const shown = document.getElementById("trouble");
  if (shown.textContent !== words) shown.textContent = words;
  shown.hidden = !words;
}

// Parts that refresh themselves ---------------------------------------------------------------------------------------------

// A part with the focus, with selected text or with something unfolded is not refreshed.
const isInUse = (part) => part.contains(document.activeElement) && document.activeElement.matches("input, select, textarea")
  || (getSelection() && !getSelection().isCollapsed && part.contains(getSelection().anchorNode)) || part.querySelector("details[open], input:checked");

const tags = new Map();
async function renew(part) {
  if (document.hidden || isInUse(part)) return;
  const headers = { Accept: "text/html", "X-Requested-With": "refresh" };
  if (tags.has(part.id)) headers["If-None-Match"] = tags.get(part.id);
  const answer = await fetch(location.href, { headers, credentials: "same-origin", redirect: "manual", cache: "no-store" });
  // The session has ended: the server redirects to the login.
  if (answer.type === "opaqueredirect" || answer.status === 401) { location.reload(); return; }
  if (answer.status === 404) { location.reload(); return; }
  if (answer.status !== 200 && answer.status !== 304) throw new Error(`${answer.status}`);
  trouble("");
  if (answer.status === 304) return;
  if (answer.headers.get("ETag")) tags.set(part.id, answer.headers.get("ETag"));
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  document.getElementById("troubles").replaceChildren(...page.getElementById("troubles").childNodes);
  // What was requested is over.
  if (!page.getElementById("notice")) document.getElementById("notice")?.remove();
  const fresh = page.getElementById(part.id);
  if (!fresh) return;
  const focused = part.contains(document.activeElement) ? pathTo(part, document.activeElement) : null;
  tellTimes(fresh);
  part.replaceChildren(...fresh.childNodes);
  if (part.dataset.state && part.dataset.state !== fresh.dataset.state) announce(`The run is ${fresh.dataset.state.split(" ")[0]}.`);
  for (const name of ["refresh", "events", "state"]) {
    if (name in fresh.dataset) part.dataset[name] = fresh.dataset[name];
    else delete part.dataset[name];
  }
  if (focused) find(part, focused)?.focus({ preventScroll: true });
}

// The position of an element among its siblings, to restore the focus after a refresh.
function pathTo(top, element) {
  const path = [];
  for (let each = element; each !== top; each = each.parentElement) path.unshift([...each.parentElement.children].indexOf(each));
  return path;
}
const find = (top, path) => path.reduce((each, index) => each && each.children[index], top);

const streamed = new WeakSet();  // parts that a stream of events updates
async function keepRenewing(part) {
  let seconds = Number(part.dataset.refresh);
  for (let turn = 1; part.dataset.refresh; turn++) {
    await pause(seconds);
    if (!part.dataset.refresh) return;
    // Sometimes nevertheless: the stream does not contain everything, such as the skipped files.
    if (streamed.has(part) && turn % 15) continue;
    try {
      await renew(part);
      seconds = Number(part.dataset.refresh);
    } catch {
      trouble("The server does not respond. Trying again…");  // it is restarting, or the network is down
      seconds = Math.min(seconds * 2, 30);
    }
  }
}

// A live run ------------------------------------------------------------------------------------------------------

// A browser opens six connections per server for all its tabs: with more streams the next page would wait for ever.
// Tabs without a stream poll once a second.
const MOST_STREAMS = 3;
async function place() {
  if (!navigator.locks) return () => {};  // available over https and on localhost only; hidden tabs have no stream anyway
  for (let number = 0; number < MOST_STREAMS; number++) {
    const leave = await new Promise((taken) => {
      navigator.locks.request(`${root} stream ${number}`, { ifAvailable: true }, (lock) => (
        lock ? new Promise((done) => taken(done)) : taken(null)
      ));
    });
    if (leave) return leave;
  }
  return null;
}

function showProgress(part, progress) {
  const bar = part.querySelector("progress");
  if (!bar || !progress) return;
  // The words of a first sync are stored by file, and nothing is embedded.
  const embeds = progress.chunks_total && progress.phase !== "words";
  bar.max = (embeds ? progress.chunks_total : progress.files_total) || 1;
  bar.value = embeds ? progress.chunks_embedded : progress.files_done;
  part.querySelector("[data-live-chunks]").hidden = !embeds;
  part.querySelector("[data-live-files]").hidden = !progress.files_total;
  part.querySelector("[data-live-eta]").hidden = !progress.eta_seconds;
  part.querySelector("[data-live-file]").hidden = !progress.file;
  const stages = (seconds) => Object.entries(seconds).map(([name, spent]) => `${name} ${timed(spent)}`).join(" · ");
  const written = {
    bytes_read: sized, eta_seconds: timed, chunks_per_second: (rate) => rate.toFixed(1), phase: String, file: visible,
    stage_seconds: stages,
  };
  for (const each of part.querySelectorAll("[data-live]")) {
    const value = progress[each.dataset.live];
    if (value !== undefined && value !== null) each.textContent = (written[each.dataset.live] || counted)(value);
  }
}

async function follow(part) {
  let stream = null, leave = null, silence = 0, opening = false;

  function close() {
    clearTimeout(silence);
    streamed.delete(part);
    if (stream) stream.close();
    if (leave) leave();
    stream = leave = null;
  }

  async function open() {
    if (stream || opening || document.hidden || !part.dataset.events) return;
    opening = true;
    leave = await place();
    opening = false;
    if (!leave) { setTimeout(open, 10_000); return; }
    if (document.hidden || !part.dataset.events) { close(); return; }
    stream = new EventSource(part.dataset.events);
    // A proxy that buffers events: the page polls instead.
    silence = setTimeout(() => { close(); setTimeout(open, 60_000); }, 5_000);
    stream.addEventListener("progress", (event) => update(JSON.parse(event.data)));
    stream.addEventListener("ended", () => { close(); renew(part).catch(() => {}); });
    stream.addEventListener("error", () => {
      streamed.delete(part);
      // Otherwise the browser reconnects by itself; this one was refused, or the run has ended.
      if (stream && stream.readyState === EventSource.CLOSED) { close(); setTimeout(open, 10_000); }
    });
  }

  function update(run) {
    clearTimeout(silence);
    streamed.add(part);
    trouble("");
    if (`${run.status} ${run.attempt}` !== part.dataset.state) renew(part).catch(() => {});
    else showProgress(part, run.progress);
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) close();
    else open();
  });
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => { if (event.persisted) open(); });
  open();
}

// Forms -------------------------------------------------------------------------------------------------------------------

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.method !== "post") {
    // Empty fields are left out of the address. Days are in the local zone.
    const zone = form.elements.zone;
    if (zone) zone.value = form.elements.since.value || form.elements.until.value ? Intl.DateTimeFormat().resolvedOptions().timeZone : "";
    const unsaid = [...form.elements].filter((field) => field.name && !field.value);
    unsaid.forEach((field) => { field.disabled = true; });
    setTimeout(() => unsaid.forEach((field) => { field.disabled = false; }));
    return;
  }
  // After the event: a disabled button is not submitted.
  setTimeout(() => form.querySelectorAll("button").forEach((button) => { button.disabled = true; }));
});
addEventListener("pageshow", (event) => {
  if (event.persisted) document.querySelectorAll("button[disabled]").forEach((button) => { button.disabled = false; });
});

for (const field of document.querySelectorAll("[data-names]")) {
  let requested = null, timer = 0;
  const offer = async () => {
    if (field.value === requested) return;
    requested = field.value;
    const query = new URLSearchParams({ limit: 20, ...(requested ? { name: requested.slice(0, 255) } : {}) });
    const answer = await fetch(`${root}/api/v1/repositories?${query}`).catch(() => null);
    if (!answer || !answer.ok) return;
    const names = (await answer.json()).items.map((each) => Object.assign(document.createElement("option"), { value: each.name }));
    field.list.replaceChildren(...names);
  };
  field.addEventListener("focus", offer);
  field.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(offer, 150); });
}

// Keys ----------------------------------------------------------------------------------------------------------------

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") document.querySelectorAll("details.menu[open]").forEach(close);
  if (event.target.matches("input, select, textarea")) return;
  const keys = document.getElementById("keys-dialog");
  if (event.key === "?" && !keys.open) keys.showModal();
  if (event.key !== "/" || keys.open) return;
  // The page of the search has a field of its own.
  const field = document.querySelector(".find input") || document.querySelector("main input[type=search]");
  if (!field) return;
  event.preventDefault();
  field.focus();
  field.select();
});

// A menu closes when something else is pressed.
function close(menu) {
  if (menu.contains(document.activeElement)) menu.querySelector("summary").focus();
  menu.open = false;
}
document.addEventListener("click", (event) => {
  document.querySelectorAll("details.menu[open]").forEach((menu) => { if (!menu.contains(event.target)) menu.open = false; });
});

// Lines of a file -----------------------------------------------------------------------------------------------------

// #L10-20, as in links of GitLab; #L10 and ?lines=10-20 need no script.
function markLines() {
  const [, first, last] = location.hash.match(/^#L(\d+)-L?(\d+)$/) || [];
  if (!first) return;
  document.querySelectorAll(".line").forEach((line) => {
    const number = Number(line.id.slice(1));
    line.classList.toggle("marked", Number(first) <= number && number <= Number(last));
  });
  document.getElementById(`L${first}`)?.scrollIntoView();
}
addEventListener("hashchange", markLines);
markLines();

// Error pages that reload ------------------------------------------------------------------------

async function tryAgain(seconds) {
  for (;;) {
    await pause(seconds);
    const answer = await fetch(location.href, { headers: { Accept: "text/html" }, cache: "no-store" }).catch(() => null);
    if (answer && answer.status < 500) { location.reload(); return; }
  }
}

tellTimes(document);
setInterval(() => tellTimes(document), 15_000);
const notice = document.getElementById("notice");
if (notice) setTimeout(() => announce(notice.textContent), 100);
document.querySelectorAll("[data-refresh]").forEach(keepRenewing);
document.querySelectorAll("[data-events]").forEach(follow);
document.querySelectorAll("[data-retry]").forEach((each) => tryAgain(Number(each.dataset.retry)));
