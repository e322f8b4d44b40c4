"use strict";
// Everything works without this file. With it: times in the reader's zone, parts of a page that renew themselves, and
// buttons that cannot be pressed twice.

// In the form, and so in the width, that the server writes: nothing moves when the script arrives.
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
    const told = `${Math.trunc(Math.abs(seconds) / size)} ${unit}`;
    time.textContent = seconds > 0 ? `in ${told}` : `${told} ago`;
  }
}

// A part that has the reader's focus, or text that is being selected, is left alone.
const isInUse = (part) => part.contains(document.activeElement) && document.activeElement.matches("input, select, textarea")
  || (getSelection() && !getSelection().isCollapsed && part.contains(getSelection().anchorNode));

const tags = new Map();
async function renew(part) {
  if (document.hidden || isInUse(part)) return;
  const headers = { "X-Requested-With": "refresh" };
  if (tags.has(part.id)) headers["If-None-Match"] = tags.get(part.id);
  const answer = await fetch(location.href, { headers, credentials: "same-origin", redirect: "manual", cache: "no-store" });
  if (answer.type === "opaqueredirect" || answer.status === 401) { location.reload(); return; }
  if (answer.status !== 200) return;
  if (answer.headers.get("ETag")) tags.set(part.id, answer.headers.get("ETag"));
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById(part.id);
  if (!fresh) return;
  const focused = part.contains(document.activeElement) ? pathTo(part, document.activeElement) : null;
  tellTimes(fresh);
  part.replaceChildren(...fresh.childNodes);
  if (!fresh.dataset.refresh) delete part.dataset.refresh;
  if (focused) find(part, focused)?.focus({ preventScroll: true });
}

// Where an element is among its siblings, so that the focus finds its place again after a renewal.
function pathTo(root, element) {
  const path = [];
  for (let each = element; each !== root; each = each.parentElement) path.unshift([...each.parentElement.children].indexOf(each));
  return path;
}
const find = (root, path) => path.reduce((each, index) => each && each.children[index], root);

async function keepRenewing(part) {
  let pause = Number(part.dataset.refresh);
  while (part.dataset.refresh) {
    await new Promise((done) => setTimeout(done, pause * 1000));
    try {
      await renew(part);
      pause = Number(part.dataset.refresh);
    } catch {
      pause = Math.min(pause * 2, 60);  // the daemon restarts, or the network is gone
    }
  }
}

document.addEventListener("submit", (event) => {
  if (event.target.method !== "post") return;
  // After the event: a button that is disabled at once is not sent.
  setTimeout(() => event.target.querySelectorAll("button").forEach((button) => { button.disabled = true; }));
});
addEventListener("pageshow", (event) => {
  if (event.persisted) document.querySelectorAll("button[disabled]").forEach((button) => { button.disabled = false; });
});

tellTimes(document);
setInterval(() => tellTimes(document), 15000);
document.querySelectorAll("[data-refresh]").forEach(keepRenewing);
