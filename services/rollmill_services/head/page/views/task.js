import { ofRun, profiler, useData } from "../api.js";
import { count } from "../format.js";
import { Loading, Trouble } from "../parts/common.js";
import { Conversation } from "../parts/conversation.js";
import { go, url } from "../router.js";
import { html } from "../vendor/preact.js";
import { Summary } from "./rollout.js";

const BESIDE = 4;

/** The repeats of one task side by side. */
export function Task({ id, task, query }) {
  const from = Math.max(0, Number(query.from) || 0);
  const asked = new URLSearchParams({ filter: `task == ${Number(task)}`, sort: "repeat", offset: from, limit: BESIDE });
  const { data, problem, loading, reload } = useData(profiler(ofRun(id, `/rollouts/table?${asked}`)));
  const back = { href: url(["runs", id, "rollouts"]), label: "All rollouts of this run" };
  const total = data?.total ?? 0;
  const move = (to) => () => go(url(["runs", id, "tasks", task], { from: to || "" }));
  return html`
    <nav class="crumbs" aria-label="Where this is"><a href=${url(["runs"])}>Runs</a> / <a href=${url(["runs", id])}>${id}</a> /${" "}
      <a href=${back.href}>Rollouts</a></nav>
    <h1>Task ${task}, its repeats side by side</h1>
    <${Trouble} problem=${problem} what="This task" again=${reload} back=${back} />
    ${loading && html`<${Loading} what="the repeats" />`}
    ${data && total === 0 && html`<p>No rollout of task ${task} has ended. <a href=${back.href}>${back.label}</a></p>`}
    ${total > BESIDE && html`
      <p class="actions">
        <button type="button" disabled=${from === 0} onClick=${move(Math.max(0, from - BESIDE))}>Earlier</button>
        ${count(from + 1)} to ${count(Math.min(total, from + BESIDE))} of ${count(total)}
        <button type="button" disabled=${from + BESIDE >= total} onClick=${move(from + BESIDE)}>Later</button>
      </p>`}
    <div class="beside" tabindex="0" role="region" aria-label="Repeats">
      ${(data?.rollouts ?? []).map((one) => html`<${Repeat} key=${one.repeat} id=${id} task=${task} repeat=${one.repeat} />`)}
    </div>
  `;
}

function Repeat({ id, task, repeat }) {
  const { data, problem, loading } = useData(profiler(ofRun(id, `/rollouts/${encodeURIComponent(task)}/${repeat}`)));
  const row = data && (data.row ?? { ...data.input, ...data.attempts.at(-1) });
  return html`
    <article>
      <h2><a href=${url(["runs", id, "rollouts", task, repeat])}>Repeat ${repeat}</a></h2>
      ${loading && html`<${Loading} what="it" />`}
      <${Trouble} problem=${problem} what="This rollout" />
      ${row && html`<${Summary} row=${row} /><${Conversation} row=${row} />`}
    </article>
  `;
}
