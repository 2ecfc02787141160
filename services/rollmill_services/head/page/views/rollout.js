import { head, ofRun, profiler, useData } from "../api.js";
import { count, duration, moment, number } from "../format.js";
import { Loading, Stat, Trouble } from "../parts/common.js";
import { Conversation, Fields } from "../parts/conversation.js";
import { url } from "../router.js";
import { asText, escaped, Short, Text } from "../text.js";
import { html, useEffect, useRef, useState } from "../vendor/preact.js";

export function Rollout({ id, task, repeat }) {
  const { data, problem, loading, reload } = useData(profiler(ofRun(id, `/rollouts/${encodeURIComponent(task)}/${encodeURIComponent(repeat)}`)));
  const agents = useData(head("/v1/services?kind=agent")).data?.services ?? [];
  const back = { href: url(["runs", id, "rollouts"]), label: "All rollouts of this run" };
  return html`
    <nav class="crumbs" aria-label="Where this is"><a href=${url(["runs"])}>Runs</a> / <a href=${url(["runs", id])}>${id}</a> /${" "}
      <a href=${back.href}>Rollouts</a></nav>
    <h1>Task ${task}, repeat ${repeat}</h1>
    <${Repeats} id=${id} task=${task} repeat=${repeat} />
    <${Trouble} problem=${problem} what="This rollout" again=${reload} back=${back} />
    ${loading && html`<${Loading} what="the rollout" />`}
    ${data && html`<${Whole} data=${data} agents=${agents} />`}
  `;
}

function Whole({ data, agents }) {
  const { row, attempts, input } = data;
  const shown = row ?? { ...input, ...attempts.at(-1) };
  return html`
    <${Summary} row=${shown} />
    <${Copies} row=${shown} input=${input ?? row} agents=${agents} />
    ${attempts.length > 0 && html`<${Attempts} attempts=${attempts} finished=${row !== null} />`}
    <div class="reading">
      <section aria-label="Conversation"><h2>Conversation</h2><${Conversation} row=${shown} /></section>
      <section aria-label="Fields"><${Fields} row=${row ?? {}} input=${input} /></section>
    </div>
  `;
}

export function Summary({ row }) {
  const usage = row.response?.usage ?? {};
  const timing = row._rollmill ?? {};
  return html`
    <dl class="stats">
      <${Stat} label="Reward">${number(row.reward)}</${Stat}>
      <${Stat} label="Agent"><${Short} value=${row.agent_ref?.name ?? "–"} room=${60} /></${Stat}>
      <${Stat} label="Input tokens">${count(usage.input_tokens)}</${Stat}>
      <${Stat} label="Output tokens">${count(usage.output_tokens)}</${Stat}>
      <${Stat} label="Took">${duration(timing.seconds)}</${Stat}>
      <${Stat} label="Begun">${timing.started_at ? moment(timing.started_at * 1000) : "–"}</${Stat}>
      ${row.response?.incomplete_details && html`<${Stat} label="Cut short"><${Short} value=${row.response.incomplete_details.reason ?? "yes"} /></${Stat}>`}
    </dl>
  `;
}

/** The repeats of the task, to go from one to the next. */
function Repeats({ id, task, repeat }) {
  const asked = new URLSearchParams({ filter: `task == ${Number(task)}`, sort: "repeat", limit: 200 });
  const { data } = useData(Number.isFinite(Number(task)) ? profiler(ofRun(id, `/rollouts/table?${asked}`)) : null);
  if (!data || data.rollouts.length < 2) return null;
  return html`
    <nav class="repeats" aria-label=${`Repeats of task ${task}`}>
      ${data.rollouts.map((one) => html`
        <a key=${one.repeat} href=${url(["runs", id, "rollouts", one.task, one.repeat])} aria-current=${String(one.repeat) === repeat ? "page" : undefined}
          class=${one.reward === null ? "lost" : ""}>${one.repeat}: ${one.reward === null ? "failed" : number(one.reward, 2)}</a>`)}
      <a class="aside" href=${url(["runs", id, "tasks", task])}>Side by side</a>
    </nav>
  `;
}

function Attempts({ attempts, finished }) {
  return html`
    <section class="attempts">
      <h2>${finished ? "Earlier attempts that failed" : "Every attempt failed"}</h2>
      <ul>${attempts.map((attempt, at) => html`
        <li key=${at}><strong><${Short} value=${attempt._ng_failure_class ?? "unclassified"} /></strong>${" "}
          ${attempt.failure?.boundary && html`at the <${Short} value=${attempt.failure.boundary} />: `}
          <${Text} value=${asText(attempt.failure?.detail ?? "")} /></li>`)}
      </ul>
    </section>
  `;
}

function Copies({ row, input, agents }) {
  const [copied, setCopied] = useState(null);
  const copy = (what, text) => async () => {
    const done = await navigator.clipboard?.writeText(text).then(() => true, () => false);
    setCopied({ what, text: done ? null : text });
  };
  return html`
    <p class="actions">
      <button type="button" onClick=${copy("JSON", escaped(JSON.stringify(row, null, 2)))}>Copy as JSON</button>
      <button type="button" onClick=${copy("curl", curlOf(row, input, agents))}>Copy as curl</button>
      <span role="status">${copied && (copied.text === null ? `Copied as ${copied.what}.` : "The browser does not let the page copy; take it from here:")}</span>
    </p>
    ${copied?.text && html`<${Selected} text=${copied.text} />`}
  `;
}

function Selected({ text }) {
  const area = useRef(null);
  useEffect(() => area.current.select(), [text]);
  return html`<textarea ref=${area} readonly rows="4" aria-label="Text to copy" value=${text}></textarea>`;
}

/** A command that runs the same row again at a live replica of its agent. Plain ASCII, so that it is what it looks like. */
export function curlOf(row, input, agents) {
  const agent = agents.find((service) => service.name === row.agent_ref?.name);
  const address = agent?.url.replace(/\/+$/, "") ?? "http://AGENT";
  const body = escaped(JSON.stringify(asked(input)), /[^\x20-\x7e]/g);
  return [
    `curl -s ${quoted(`${address}/run`)}`,
    `-H "Authorization: Bearer $(rollmill token)"`,
    `-H 'Content-Type: application/json'`,
    `--data-raw ${quoted(body)}`,
  ].join(" \\\n     ");
}

function asked(input) {
  const { response, reward, _rollmill, ...row } = input ?? {};
  return row;
}

const quoted = (text) => `'${text.replace(/'/g, "'\\''")}'`;
