// SPDX-License-Identifier: Apache-2.0
// Refreshes changed parts every few seconds. Without JavaScript, users reload the pages.
"use strict";

(function () {
  const seconds = Number(document.body.dataset.refreshSeconds);
  const pause = document.getElementById("pause");
  const silence = document.getElementById("silence");
  if (!seconds || !pause) {
    return;
  }
  let paused = false;
  let silentSince = null;

  pause.hidden = false;
  pause.addEventListener("click", function () {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    pause.textContent = paused ? "Resume updates" : "Pause updates";
  });

  // Returns a function that finds the focused element again after its part was replaced, or null if it has no focus.
  function focusIn(part) {
    const focused = document.activeElement;
    if (!focused || focused === part || !part.contains(focused)) {
      return null;
    }
    const same = (one) => one.tagName === focused.tagName && one.getAttribute("href") === focused.getAttribute("href")
      && one.getAttribute("aria-label") === focused.getAttribute("aria-label");
    return (fresh) => Array.from(fresh.querySelectorAll(focused.tagName)).find(same);
  }

  function replaceParts(fresh) {
    document.title = fresh.title;
    for (const part of document.querySelectorAll("[data-live]")) {
      const now = fresh.getElementById(part.id);
      if (!now || now.innerHTML === part.innerHTML) {
        continue;
      }
      const find = focusIn(part);
      part.replaceChildren(...now.childNodes);
      part.parentElement.className = now.parentElement ? now.parentElement.className : part.parentElement.className;
      const element = find && find(part);
      if (element) {
        element.focus({ preventScroll: true });
      }
    }
  }

  async function refresh() {
    if (!paused && !document.hidden) {
      try {
        const response = await fetch(location.href, { redirect: "manual", signal: AbortSignal.timeout(seconds * 2000) });
        if (response.type === "opaqueredirect") {
          location.reload();
          return;
        }
        if (!response.ok) {
          throw new Error(String(response.status));
        }
        replaceParts(new DOMParser().parseFromString(await response.text(), "text/html"));
        silentSince = null;
        silence.hidden = true;
      } catch (error) {
        silentSince = silentSince || new Date();
        const text = "The dashboard has not responded since " + silentSince.toISOString().slice(11, 19)
          + " UTC: this page is out of date.";
        if (silence.hidden || silence.textContent !== text) {
          silence.textContent = text;
          silence.hidden = false;
        }
      }
    }
    setTimeout(refresh, seconds * 1000);
  }

  setTimeout(refresh, seconds * 1000);
})();
