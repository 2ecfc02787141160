// Parts that several views are made of.
import { html, useEffect, useRef } from "../vendor/preact.js";
import { visible } from "../text.js";

/** What went wrong, and what can be done about it. */
export function Trouble({ problem, what, again, back }) {
  if (!problem) return null;
  return html`
    <div class="trouble" role="alert">
      <p><strong>${what ? `${what}: ` : ""}${visible(problem.title ?? "Error")}.</strong> <bdi>${visible(problem.message)}</bdi></p>
      <p class="actions">
        ${again && html`<button type="button" onClick=${again}>Try again</button>`}
        ${back && html`<a href=${back.href}>${back.label}</a>`}
      </p>
    </div>
  `;
}

export const Loading = ({ what }) => html`<p class="loading" role="status">Loading ${what} …</p>`;

const LOOKS = {
  running: "busy", ready: "good", finished: "good", paused: "warn", draining: "warn",
  cancelled: "warn", interrupted: "warn", failed: "bad",
};

/** A state as a word in a colour; the word alone says it all. */
export const Badge = ({ state }) => html`<span class=${`badge ${LOOKS[state] ?? "plain"}`}>${state ?? "unknown"}</span>`;

/** A number under its name. */
export const Stat = ({ label, children, note }) => html`
  <div class="stat"><dt>${label}</dt><dd>${children}${note && html`<small>${note}</small>`}</dd></div>
`;

export function Progress({ done, failed = 0, of, label }) {
  const share = of ? Math.min(100, (100 * (done + failed)) / of) : 0;
  return html`
    <div class="progress" role="progressbar" aria-label=${label} aria-valuemin="0" aria-valuemax="100" aria-valuenow=${Math.floor(share)}>
      <div class="done" style=${{ width: `${of ? (100 * done) / of : 0}%` }} />
      <div class="lost" style=${{ width: `${of ? (100 * failed) / of : 0}%` }} />
    </div>
  `;
}

/** A table that scrolls sideways where it has to; people without a mouse can scroll it, too. */
export const Scroll = ({ label, children }) => html`
  <div class="scroll" tabindex="0" role="region" aria-label=${label}>${children}</div>
`;

/** A question before something is done. */
export function Confirm({ title, yes, onYes, onNo, danger = false, children }) {
  const dialog = useRef(null);
  useEffect(() => dialog.current.showModal(), []);
  const answered = (event) => {
    event.preventDefault();
    onYes(new FormData(event.target));
  };
  return html`
    <dialog ref=${dialog} onClose=${onNo} aria-labelledby="dialog-title">
      <form method="dialog" onSubmit=${answered}>
        <h2 id="dialog-title">${title}</h2>
        ${children}
        <p class="actions">
          <button type="submit" class=${danger ? "danger" : "primary"}>${yes}</button>
          <button type="button" onClick=${onNo}>Leave it</button>
        </p>
      </form>
    </dialog>
  `;
}
