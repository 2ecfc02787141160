// Which view is shown is in the address, with everything that is needed to show it again.
import { useEffect, useState } from "./vendor/preact.js";

const CHANGED = "rollmill-moved";
const ROOT = "/ui";

/** Address of a view, each part of its path escaped. */
export function url(parts, values = {}) {
  const given = Object.entries(values).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const query = given.length ? `?${new URLSearchParams(given)}` : "";
  return `${ROOT}/${parts.map((part) => encodeURIComponent(part)).join("/")}${query}`;
}

export function go(address, { replace = false } = {}) {
  if (address === location.pathname + location.search) return;
  if (replace) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
  dispatchEvent(new CustomEvent(CHANGED));
}

function here() {
  const parts = location.pathname.slice(ROOT.length).split("/").filter(Boolean);
  return { parts: parts.map(unescaped), query: Object.fromEntries(new URLSearchParams(location.search)) };
}

function unescaped(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function usePlace() {
  const [place, setPlace] = useState(here);
  useEffect(() => {
    const moved = () => setPlace(here());
    addEventListener("popstate", moved);
    addEventListener(CHANGED, moved);
    return () => {
      removeEventListener("popstate", moved);
      removeEventListener(CHANGED, moved);
    };
  }, []);
  return place;
}

/** Follow links between views without loading the page again; the browser keeps all its own ways to open a link. */
export function followLinks(event) {
  const link = event.target.closest?.("a[href]");
  const plain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
  if (!link || !plain || link.target || link.hasAttribute("download")) return;
  if (link.origin !== location.origin || !link.pathname.startsWith(`${ROOT}/`) || link.hash) return;
  event.preventDefault();
  go(link.pathname + link.search);
}
