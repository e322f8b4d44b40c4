"use strict";
// Shortens ways on the pages of the search and of a file. Everything works without it.

{
  const field = document.querySelector("input[data-filters]");
  const hits = [...document.querySelectorAll(".hit")];
  const preview = document.getElementById("preview");
  const isTyping = (event) => event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea");

  async function part(address, from, to) {
    const answer = await fetch(`${address}?part=${from}-${to}`, { headers: { Accept: "text/html" }, credentials: "same-origin" });
    if (!answer.ok) return null;
    return new DOMParser().parseFromString(await answer.text(), "text/html").body;
  }

  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
      announce(`Copied: ${text}`);
      trouble("Copied.");
      setTimeout(() => trouble(""), 1500);
    } catch {
      prompt("Copy:", text);  // without https a page may not write to the clipboard
    }
  }
  for (const button of document.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", () => copy(button.dataset.copy || location.href));
  }

  // More lines --------------------------------------------------------------------------------------------------------

  for (const link of document.querySelectorAll("[data-more]")) {
    link.addEventListener("click", async (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      const hit = link.closest(".hit"), [, from, to] = link.search.match(/lines=(\d+)-(\d+)/) || [];
      const lines = await part(hit.dataset.file, from, to).catch(() => null);
      const rows = lines ? [...lines.querySelectorAll(".codeline")] : [];
      const shown = hit.querySelector("pre");
      rows.forEach((row) => row.classList.add("around"));
      const added = rows.flatMap((row) => [row, "\n"]);
      if (link.dataset.more === "before") shown.prepend(...added);
      else shown.append(...added);
      const size = to - from + 1, address = link.href.split("?")[0];
      const [next, last] = link.dataset.more === "before" ? [Math.max(1, from - size), from - 1] : [Number(to) + 1, Number(to) + size];
      link.hidden = !rows.length || last < 1 || (link.dataset.more === "after" && rows.length < size);
      link.href = `${address}?lines=${next}-${last}#L${next}`;
    });
  }

  // The selected hit, and its preview -----------------------------------------------------------------------------------

  let current = null, asked = 0;
  async function select(hit, scroll = true) {
    if (!hit || hit === current) return;
    current?.classList.remove("current");
    current = hit;
    hit.classList.add("current");
    if (scroll) hit.scrollIntoView({ block: "nearest" });
    if (!preview || getComputedStyle(preview).display === "none" && !preview.hidden || !matchMedia("(min-width: 1200px)").matches) return;
    const [first, last] = hit.dataset.lines.split("-").map(Number), number = ++asked;
    const lines = await part(hit.dataset.file, Math.max(1, first - 60), last + 100).catch(() => null);
    if (number !== asked || !lines) return;
    const head = document.createElement("header"), where = hit.querySelector(".where").cloneNode(true);
    where.textContent = `Open ${hit.getAttribute("aria-label").replace(/, from line.*/, "")}`;
    where.className = "";
    head.append(where);
    preview.replaceChildren(head, ...lines.childNodes);
    preview.hidden = false;
    for (const row of preview.querySelectorAll(".codeline")) {
      const at = Number(row.dataset.line);
      row.classList.toggle("marked", first <= at && at <= last);
    }
    const code = preview.querySelector(".code"), marked = preview.querySelector(".marked");
    if (code && marked) code.scrollTop = marked.offsetTop - code.offsetTop - code.clientHeight / 3;
  }
  hits.forEach((hit) => {
    hit.addEventListener("click", () => select(hit, false));
    hit.addEventListener("focusin", () => select(hit, false));
  });
  if (hits.length) select(hits.find((hit) => `#${hit.id}` === location.hash) || hits[0], false);

  document.addEventListener("keydown", (event) => {
    if (isTyping(event) || !hits.length) return;
    const step = { j: 1, k: -1 }[event.key];
    if (step) {
      select(hits[Math.min(hits.length - 1, Math.max(0, hits.indexOf(current) + step))]);
    } else if (event.key === "y" && current) {
      copy(current.dataset.permalink || current.querySelector(".where").href);
    } else if (event.key === "Enter" && current && !event.target.closest("a, button")) {
      current.querySelector(".where").click();
    } else return;
    event.preventDefault();
  });

  // A file -------------------------------------------------------------------------------------------------------------

  const head = document.querySelector(".filehead");
  // The address at the source with the commit, and the marked lines.
  const permalink = () => {
    const lines = location.hash.match(/^#L\d+(-L?\d+)?$/) || [location.search.match(/lines=(\d+)-?(\d*)/)].filter(Boolean).map(([, first, last]) => `#L${first}${last ? `-${last}` : ""}`);
    return head.dataset.permalink ? head.dataset.permalink.split("#")[0] + (lines[0] || "") : location.href;
  };
  if (head) {
    for (const button of head.querySelectorAll('[data-copy=""]')) {
      button.addEventListener("click", (event) => { event.stopImmediatePropagation(); copy(permalink()); }, true);
    }
    const found = (document.getElementById("found")?.dataset.lines || "").split(" ").filter(Boolean).map(Number);
    let at = -1;
    const jump = (step) => {
      const here = found.filter((each) => document.getElementById(`L${each}`));
      if (!here.length) return;
      at = (at + step + here.length) % here.length;
      document.querySelectorAll(".line.marked").forEach((each) => each.classList.remove("marked"));
      const line = document.getElementById(`L${here[at]}`);
      line.classList.add("marked");
      line.scrollIntoView({ block: "center" });
      announce(`Line ${here[at]}, ${at + 1} of ${here.length}`);
    };
    document.querySelector("[data-next]")?.addEventListener("click", (event) => {
      if (found.some((each) => document.getElementById(`L${each}`))) { event.preventDefault(); jump(1); }
    });
    // After app.js, which announces.
    if (found.length && !location.hash && !/lines=|from=/.test(location.search)) addEventListener("DOMContentLoaded", () => jump(1));
    document.addEventListener("keydown", (event) => {
      if (isTyping(event)) return;
      if (event.key === "n" || event.key === "N") jump(event.shiftKey ? -1 : 1);
      else if (event.key === "y") copy(permalink());
      else return;
      event.preventDefault();
    });
    const outline = [...document.querySelectorAll(".definitions a")].map((link) => [Number(link.hash.slice(2)), link]);
    const mark = () => {
      const title = head.firstElementChild.getBoundingClientRect(), below = Math.max(title.bottom, head.getBoundingClientRect().bottom) + 40;
      const under = document.elementFromPoint(title.left + 90, below)?.closest(".line");
      if (!under) return;
      const number = Number(under.id.slice(1)), inside = outline.filter(([line]) => line <= number).pop();
      for (const [, link] of outline) {
        if (inside && link === inside[1]) link.setAttribute("aria-current", "true");
        else link.removeAttribute("aria-current");
      }
    };
    let due = 0;
    addEventListener("scroll", () => { cancelAnimationFrame(due); due = requestAnimationFrame(mark); }, { passive: true });
    mark();
  }

  // Filters are completed ------------------------------------------------------------------------------------------------

  // The field has one line: a text of several goes where they stay.
  const paste = document.querySelector(".paste");
  field?.addEventListener("paste", (event) => {
    const text = event.clipboardData?.getData("text") || "";
    if (!paste || !/\S\s*\n\s*\S/.test(text)) return;
    event.preventDefault();
    paste.open = true;
    const area = paste.querySelector("textarea");
    area.value = text.slice(0, area.maxLength);
    area.focus();
  });

  if (field) {
    const list = Object.assign(document.createElement("ul"), { className: "completions", id: "completions", hidden: true });
    list.setAttribute("role", "listbox");
    list.setAttribute("aria-label", "Filters");
    field.parentElement.append(list);
    for (const [name, value] of [["role", "combobox"], ["aria-controls", "completions"], ["aria-autocomplete", "list"], ["aria-expanded", "false"]]) field.setAttribute(name, value);
    const words = { repo: "a repository", path: "files that match", lang: "a language", kind: "a kind of definition", symbol: "the definition of a name", like: "code like that at a line" };
    const counted = (key) => [...document.querySelectorAll(`#by-${key} ~ ul a`)].map((each) => each.dataset.value);
    let chosen = -1, turn = 0;

    const token = () => {
      const before = field.value.slice(0, field.selectionStart);
      const found = before.match(/(?:^|\s)(?:([a-z]+):)?("?)([^\s"]*)$/);
      return found && { key: found[1], typed: found[3], start: before.length - found[0].trimStart().length };
    };
    const names = { repository: "repo", language: "lang" };
    async function values(key, typed) {
      if (key === "repo") {
        const query = new URLSearchParams({ limit: 12, ...(typed ? { name: typed } : {}) });
        const answer = await fetch(`${root}/api/v1/repositories?${query}`).catch(() => null);
        return answer && answer.ok ? (await answer.json()).items.map((each) => each.name) : [];
      }
      const known = { kind: field.dataset.kinds.split(" "), lang: [...new Set([...counted("lang"), ...field.dataset.langs.split(" ")])], path: counted("path") }[key] || [];
      return known.filter((each) => each.toLowerCase().includes(typed.toLowerCase())).slice(0, 12);
    }
    const written = (key, value) => `${key}:${/[\s"]/.test(value) ? `"${value.replaceAll('"', '\\"')}"` : value}`;

    function close() {
      list.hidden = true;
      chosen = -1;
      field.setAttribute("aria-expanded", "false");
      field.removeAttribute("aria-activedescendant");
    }
    function choose(number) {
      chosen = number;
      [...list.children].forEach((each, at) => each.setAttribute("aria-selected", at === chosen));
      const option = list.children[chosen];
      if (option) field.setAttribute("aria-activedescendant", option.id);
      option?.scrollIntoView({ block: "nearest" });
    }
    function take(option) {
      const at = token();
      if (!at) return;
      const rest = field.value.slice(field.selectionStart), text = option.dataset.text;
      const head = field.value.slice(0, at.start) + text;
      field.value = head + rest;
      field.setSelectionRange(head.length, head.length);
      close();
      field.focus();
      if (text.endsWith(":")) offer();
    }
    async function offer() {
      const at = token(), number = ++turn;
      if (!at || (at.key === undefined && !at.typed)) { close(); return; }
      // While the server answers, only what still fits can be taken.
      chosen = -1;
      field.removeAttribute("aria-activedescendant");
      for (const each of [...list.children]) {
        if (each.dataset.text.toLowerCase().includes(at.typed.toLowerCase())) each.setAttribute("aria-selected", "false");
        else each.remove();
      }
      if (!list.children.length) close();
      const key = names[at.key] || at.key, filters = field.dataset.filters.split(" ");
      const options = key === undefined
        ? filters.filter((each) => each.startsWith(at.typed)).map((each) => [`${each}:`, words[each]])
        : filters.includes(key) ? (await values(key, at.typed)).map((each) => [`${written(key, each)} `, ""]) : [];
      if (number !== turn || document.activeElement !== field) return;
      list.replaceChildren(...options.map(([text, about], place) => {
        const option = Object.assign(document.createElement("li"), { id: `completion-${place}`, textContent: visible(text.trim()) });
        option.setAttribute("role", "option");
        option.setAttribute("aria-selected", "false");
        option.dataset.text = text;
        if (about) option.append(Object.assign(document.createElement("small"), { textContent: about }));
        option.addEventListener("mousedown", (event) => { event.preventDefault(); take(option); });
        return option;
      }));
      chosen = -1;
      list.hidden = !options.length;
      field.setAttribute("aria-expanded", String(!list.hidden));
    }
    field.addEventListener("input", offer);
    field.addEventListener("blur", close);
    field.addEventListener("keydown", (event) => {
      if (list.hidden) return;
      const count = list.children.length;
      if (event.key === "ArrowDown") choose((chosen + 1) % count);
      else if (event.key === "ArrowUp") choose((chosen + count - 1) % count);
      else if (event.key === "Tab" && chosen < 0) { take(list.children[0]); }
      else if ((event.key === "Enter" || event.key === "Tab") && chosen >= 0) take(list.children[chosen]);
      else if (event.key === "Escape") close();
      else return;
      event.preventDefault();
    });
  }
}
