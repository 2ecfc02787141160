// One rollout as a conversation. Everything in it was written by a model or a task, of any shape.
import { plain, Short, Text, asText } from "../text.js";
import { html, useState } from "../vendor/preact.js";

const FIRST_ITEMS = 100;
const NOT_FIELDS = new Set(["responses_create_params", "response", "agent_ref", "_ng_task_index", "_ng_rollout_index", "_ng_attempt_index", "_rollmill"]);
const CALLS = new Set(["function_call", "mcp_call", "custom_tool_call"]);
const ROLES = new Set(["user", "assistant", "system", "developer"]);

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

/** The items of request and response, in order; each is told to be of the one or the other. */
export function itemsOf(row) {
  const params = isObject(row?.responses_create_params) ? row.responses_create_params : {};
  const items = params.instructions ? [{ role: "system", content: params.instructions }] : [];
  for (const source of [params.input, isObject(row?.response) ? row.response.output : null]) {
    if (Array.isArray(source)) items.push(...source);
    else if (source) items.push({ role: "user", content: source });
  }
  return items;
}

export function Conversation({ row }) {
  const [room, setRoom] = useState(FIRST_ITEMS);
  const items = itemsOf(row);
  if (!items.length) return html`<p class="help">There is no conversation in this rollout.</p>`;
  return html`
    <ol class="turns">${items.slice(0, room).map((item, at) => html`<${Turn} key=${at} item=${item} />`)}</ol>
    ${items.length > room && html`<p><button type="button" onClick=${() => setRoom(room + FIRST_ITEMS)}>Show more of ${items.length} items</button></p>`}
  `;
}

function Turn({ item }) {
  const { who, style, what, mono = false, note = "" } = told(item);
  return html`
    <li class=${`turn ${style}`}>
      <h3><${Short} value=${who} />${note && html` <small>${note}</small>`}</h3>
      <${Text} value=${what} mono=${mono} />
    </li>
  `;
}

function told(item) {
  if (!isObject(item)) return { who: "item", style: "other", what: asText(item), mono: true };
  const kind = typeof item.type === "string" ? item.type : "message";
  if (kind === "message") {
    const role = typeof item.role === "string" ? item.role : "assistant";
    return { who: role, style: ROLES.has(role) ? role : "other", what: contentOf(item.content) };
  }
  if (kind === "reasoning") return { who: "reasoning", style: "reasoning", what: contentOf(item.content ?? item.summary) || "(not shown by the model)" };
  if (CALLS.has(kind)) return { who: `calls ${item.name ?? "?"}`, style: "call", mono: true, ...argumentsOf(item.arguments ?? item.input) };
  if (kind.endsWith("_output")) return { who: "tool output", style: "output", mono: true, what: contentOf(item.output) };
  return { who: kind, style: "other", what: asText(item), mono: true };
}

function argumentsOf(value) {
  if (typeof value !== "string") return { what: asText(value ?? "") };
  try {
    return { what: JSON.stringify(JSON.parse(value), null, 2) };
  } catch {
    return { what: value, note: "the arguments are not valid JSON" };
  }
}

function contentOf(content) {
  if (typeof content === "string") return content;
  const parts = Array.isArray(content) ? content : content === undefined || content === null ? [] : [content];
  return parts.map((part) => {
    if (isObject(part)) for (const name of ["text", "refusal"]) if (typeof part[name] === "string") return part[name];
    return asText(part);
  }).join("\n");
}

/** What else a rollout says: the verdict first, then what the environment had put into the row. */
export function Fields({ row, input }) {
  const given = isObject(input) ? input : {};
  const names = Object.keys(row ?? {}).filter((name) => !NOT_FIELDS.has(name)).sort((one, other) => (other === "reward") - (one === "reward"));
  const verdict = names.filter((name) => !(name in given));
  const task = names.filter((name) => name in given);
  return html`
    ${verdict.length > 0 && html`<h2>Verdict</h2><${Table} row=${row} names=${verdict} />`}
    ${task.length > 0 && html`<h2>Task</h2><${Table} row=${row} names=${task} />`}
  `;
}

const Table = ({ row, names }) => html`
  <dl class="fields">${names.map((name) => html`
    <div key=${name}><dt title=${plain(name)}><${Short} value=${name} /></dt><dd><${Text} value=${asText(row[name])} mono=${typeof row[name] !== "string"} /></dd></div>`)}
  </dl>
`;
