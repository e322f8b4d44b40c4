"use strict";
// The pages of runs work without this file. It counts the time of a running run on, and marks the step that it has reached.

(() => {
  const part = document.getElementById("run");
  if (!part) return;

  const units = (seconds) => {
    if (seconds < 60) return `${seconds}\u00a0s`;
    const minutes = Math.trunc(seconds / 60);
    if (minutes < 60) return `${minutes}\u00a0min\u00a0${seconds % 60}\u00a0s`;
    return `${Math.trunc(minutes / 60)}\u00a0h\u00a0${minutes % 60}\u00a0min`;
  };
  setInterval(() => {
    const since = part.querySelector("[data-since]");
    if (since) since.textContent = units(Math.max(0, Math.round((Date.now() - new Date(since.dataset.since)) / 1000)));
  }, 1000);

  new MutationObserver(() => {
    const phase = part.querySelector("[data-live=phase]");
    const steps = [...part.querySelectorAll(".steps li")];
    const reached = phase ? steps.findIndex((step) => step.dataset.phases.split(",").includes(phase.textContent)) : -1;
    const before = steps.findIndex((step) => step.className === "now");
    if (reached <= before) return;
    steps.forEach((step, number) => {
      step.className = number < reached ? "done" : number === reached ? "now" : "next";
      step.querySelector("small").textContent = number === reached ? "now" : number < reached ? "done" : "–";
    });
  }).observe(part, { subtree: true, childList: true, characterData: true });
})();
