import { call, collector, ofRun, profiler, useData } from "../api.js";
import { count, duration, interval, moment, number, rate } from "../format.js";
import { Badge, Loading, Progress, Scroll, Trouble } from "../parts/common.js";
import { url } from "../router.js";
import { Short } from "../text.js";
import { html, useEffect, useState } from "../vendor/preact.js";

const SHOWN = 50;

export function Runs() {
  const [shown, setShown] = useState(SHOWN);
  const { data, problem, loading, reload } = useData(collector("/v1/runs"), { every: 2 });
  const runs = (data?.runs ?? []).slice(0, shown);
  const left = (data?.runs.length ?? 0) - runs.length;
  return html`
    <h1>Runs</h1>
    <${Trouble} problem=${problem} what="The collector" again=${reload} />
    ${loading && html`<${Loading} what="runs" />`}
    ${data && !runs.length && html`<p>There is no run yet. <a href=${url(["start"])}>Start one</a>, or send one with
      <code>curl</code> or <code>rollmill collect</code>.</p>`}
    ${runs.length > 0 && html`
      <${Scroll} label="Runs">
        <table class="runs">
          <thead><tr>
            <th scope="col">Run</th><th scope="col">State</th><th scope="col">Progress</th>
            <th scope="col" class="num">Per second</th><th scope="col" class="num">Time left</th>
            <th scope="col">Mean reward, 95 %</th><th scope="col">Failures</th><th scope="col">Begun</th>
          </tr></thead>
          <tbody>${runs.map((run, at) => html`<${Row} key=${run.run_id} run=${run} before=${alike(run, data.runs.slice(at + 1))} />`)}</tbody>
        </table>
      </${Scroll}>`}
    ${left > 0 && html`<p><button type="button" onClick=${() => setShown(shown + SHOWN)}>Show ${count(Math.min(left, SHOWN))} more</button></p>`}
  `;
}

/** The last run before this one with the same agents: what its mean is read against. */
function alike(run, older) {
  const agents = (one) => Object.keys(one.agents).sort().join("\n");
  return agents(run) && older.find((one) => one.completed && agents(one) === agents(run))?.run_id;
}

function Row({ run, before }) {
  const settled = run.completed + run.failed;
  return html`
    <tr>
      <th scope="row"><a href=${url(["runs", run.run_id])}>${run.run_id}</a></th>
      <td><${Badge} state=${run.state} /></td>
      <td class="wide">
        <${Progress} done=${run.completed} failed=${run.failed} of=${run.expected} label=${`Progress of ${run.run_id}`} />
        <small>${count(settled)} of ${count(run.expected)}${run.in_flight ? `, ${count(run.in_flight)} in flight` : ""}</small>
      </td>
      <td class="num">${run.state === "running" ? rate(run.rate_per_second) : "–"}</td>
      <td class="num">${run.state === "running" ? duration(run.eta_seconds) : "–"}</td>
      <td><${Mean} run=${run} />
        ${before && run.completed > 0 && html`<small><a href=${url(["compare"], { a: before, b: run.run_id })}>compare with ${before}</a></small>`}</td>
      <td><${Failures} run=${run} /></td>
      <td>${moment(run.created_at)}</td>
    </tr>
  `;
}

/** The mean reward of each agent with its interval; asked for again only when there is something new. */
function Mean({ run }) {
  const [found, setFound] = useState(null);
  useEffect(() => {
    if (!run.completed) return undefined;
    const leaving = new AbortController();
    inTurn(() => call(profiler(ofRun(run.run_id, "/live")), { signal: leaving.signal })).then(setFound, () => {});
    return () => leaving.abort();
  }, [run.run_id, Math.floor(Math.log2(run.completed + 1) * 4), run.state]);
  const agents = Object.entries(found?.agents ?? {});
  if (!agents.length) return html`<span>${number(run.mean_reward)}</span>`;
  return agents.map(([name, summary]) => html`
    <div key=${name}>${interval(summary.estimates?.mean_reward)}${agents.length > 1 && html` <small><${Short} value=${name} /></small>`}</div>`);
}

let last = Promise.resolve();

/** One question at a time: a page of runs must not take every thread of the profiler. */
function inTurn(ask) {
  const answer = last.then(ask);
  last = answer.catch(() => {});
  return answer;
}

function Failures({ run }) {
  const classes = Object.entries(run.failures ?? {}).sort((one, other) => other[1] - one[1]);
  if (!classes.length) return run.failed ? html`<span class="wrong">${count(run.failed)} given up</span>` : "none";
  return classes.slice(0, 3).map(([name, amount]) => html`
    <div key=${name}><span class="wrong">${count(amount)}</span> <small><${Short} value=${name} room=${60} /></small></div>`);
}
