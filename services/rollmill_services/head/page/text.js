// Text that a model or a task wrote. It is shown as text: what would act unseen is made visible.
import { html, useState } from "./vendor/preact.js";

const FIRST = 20_000;
const MORE = 200_000;

// C0 and C1 controls except newline and tab, DEL, soft hyphen, zero-width and directional characters, tags.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]/gu;

function name(character) {
  const code = character.codePointAt(0);
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  if (code === 0x7f) return "\u2421";
  return `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
}

/** The text in pieces; characters that would not be seen, or would move others about, become marks with their names. */
export function visible(text) {
  const pieces = [];
  let end = 0;
  for (const found of text.matchAll(UNSEEN)) {
    if (found.index > end) pieces.push(text.slice(end, found.index));
    const code = `U+${found[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
    pieces.push(html`<span class="unseen" title=${code}>${name(found[0])}</span>`);
    end = found.index + found[0].length;
  }
  pieces.push(text.slice(end));
  return pieces;
}

/** The same with the marks as plain characters, for titles and labels. */
export const plain = (text) => text.replace(UNSEEN, name);

/** JSON text of the same meaning, in which characters that would act unseen where it is pasted are escaped. */
export function escaped(json, pattern = UNSEEN) {
  const hex = (found, at) => `\\u${found.charCodeAt(at).toString(16).padStart(4, "0")}`;
  return json.replace(pattern, (found) => Array.from({ length: found.length }, (_, at) => hex(found, at)).join(""));
}

/** A long text in a box of its own; of a very long one the start, until more is asked for. */
export function Text({ value, mono = false }) {
  const [room, setRoom] = useState(FIRST);
  const left = value.length - room;
  return html`
    <div class=${mono ? "text mono" : "text"} dir="auto">${visible(value.slice(0, room))}</div>
    ${left > 0 && html`<p class="more">
      ${left.toLocaleString("en")} of ${value.length.toLocaleString("en")} characters are not shown.
      <button type="button" onClick=${() => setRoom(room + MORE)}>Show more</button>
    </p>`}
  `;
}

/** A short text within a line, kept from changing the direction of what is around it. */
export const Short = ({ value, room = 200 }) => {
  const text = String(value ?? "");
  return html`<bdi>${visible(text.slice(0, room))}${text.length > room ? "…" : ""}</bdi>`;
};

export function asText(value) {
  return typeof value === "string" ? value : JSON.stringify(value, null, 2) ?? String(value);
}
