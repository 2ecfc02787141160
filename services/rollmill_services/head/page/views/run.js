import { call, collector, ofRun, profiler, useData } from "../api.js";
import { count, duration, interval, moment, number, rate } from "../format.js";
import { Chart, LINE } from "../parts/chart.js";
import { Badge, Confirm, Loading, Progress, Scroll, Stat, Trouble } from "../parts/common.js";
import { url } from "../router.js";
import { Short, visible } from "../text.js";
import { html, useMemo, useState } from "../vendor/preact.js";

const AT_WORK = ["running", "paused"];
const STOPPED = ["interrupted", "cancelled", "failed"];

export function Run({ id }) {
  const [live, setLive] = useState(true);
  const { data: run, problem, loading, reload } = useData(collector(ofRun(id)), { every: live ? 1 : 5 });
  const working = AT_WORK.includes(run?.state);
  if (run && working !== live) setLive(working);
  const started = Boolean(run?.completed);
  const timeline = useData(started ? profiler(ofRun(id, `/rollouts/timeline?buckets=${pieces(run)}`)) : null, { every: working ? 3 : 0 });
  const means = useData(started ? profiler(ofRun(id, "/live")) : null, { every: working ? 3 : 0 });
  if (loading) return html`<h1>${id}</h1><${Loading} what="the run" />`;
  if (!run) return html`<h1>Run</h1><${Trouble} problem=${problem} what="This run" again=${reload} back=${{ href: url(["runs"]), label: "All runs" }} />`;
  return html`
    <${RunHead} id=${id} at="run" />
    <div class="controls"><${Badge} state=${run.state} /> <${Controls} run=${run} reload=${reload} /></div>
    <${Trouble} problem=${problem} what="The collector" again=${reload} />
    ${run.error && html`<p class="wrong" role="alert"><bdi>${visible(run.error)}</bdi></p>`}
    <${Numbers} run=${run} timeline=${timeline.data} />
    <${Agents} run=${run} means=${means.data} />
    <${Trouble} problem=${timeline.problem ?? means.problem} what="The profiler" again=${timeline.reload} />
    <${OverTime} timeline=${timeline.data} id=${id} />
    <div class="columns"><${Pressure} run=${run} /><${Failures} run=${run} /></div>
  `;
}

/** So few pieces that each has some rollouts; the number changes seldom, so that the chart is not asked for anew. */
const pieces = (run) => (run.completed > 2000 ? 60 : run.completed > 300 ? 20 : 8);

/** The name of a run, and the ways to look at it. */
export function RunHead({ id, at }) {
  const ways = [["run", "Run", []], ["rollouts", "Rollouts", ["rollouts"]], ["profile", "Profile", ["profile"]]];
  return html`
    <h1 class="id">${id}</h1>
    <nav class="tabs" aria-label=${`Views of ${id}`}>
      ${ways.map(([name, label, rest]) => html`
        <a href=${url(["runs", id, ...rest])} aria-current=${name === at ? "page" : undefined}>${label}</a>`)}
    </nav>
  `;
}

function Numbers({ run, timeline }) {
  const settled = run.completed + run.failed;
  return html`
    <${Progress} done=${run.completed} failed=${run.failed} of=${run.expected} label="Progress of the run" />
    <dl class="stats">
      <${Stat} label="Rollouts" note=${`of ${count(run.expected)}`}>${count(settled)}</${Stat}>
      <${Stat} label="Mean reward">${number(run.mean_reward)}</${Stat}>
      <${Stat} label="Rollouts per second">${rate(run.rate_per_second)}</${Stat}>
      <${Stat} label="Tokens per second" note=${AT_WORK.includes(run.state) ? "" : "of the whole run"}>${rate(tokenRate(timeline, AT_WORK.includes(run.state)))}</${Stat}>
      <${Stat} label="Time left">${run.state === "running" ? duration(run.eta_seconds) : "–"}</${Stat}>
      <${Stat} label="Begun">${moment(run.created_at)}</${Stat}>
    </dl>
  `;
}

/** Output tokens per second: of the last piece while the run is at work, else of all of it. */
function tokenRate(timeline, working) {
  if (working) return speeds(timeline).at(-1)?.[1];
  const pieces = timeline?.buckets ?? [];
  const seconds = Math.max(...pieces.map((piece) => piece.until ?? -Infinity)) - (timeline?.began_at ?? NaN);
  return pieces.reduce((total, piece) => total + (piece.output_tokens ?? 0), 0) / seconds;
}

/** Times and output tokens per second; pieces that ended together, as commits make them, count as one. */
function speeds(timeline) {
  const pieces = (timeline?.buckets ?? []).filter((piece) => piece.until && piece.output_tokens !== null);
  if (!pieces.length || timeline.began_at === null) return [];
  const shortest = (Math.max(...pieces.map((piece) => piece.until)) - timeline.began_at) / 40;
  const points = [];
  let before = timeline.began_at;
  let tokens = 0;
  for (const piece of pieces) {
    tokens += piece.output_tokens;
    const seconds = piece.until - before;
    if (seconds <= shortest) continue;
    points.push([piece.until, tokens / seconds]);
    before = piece.until;
    tokens = 0;
  }
  return points;
}

function Controls({ run, reload }) {
  const [asked, setAsked] = useState(null);
  const [problem, setProblem] = useState(null);
  const send = async (path, options) => {
    setAsked(null);
    try {
      await call(collector(ofRun(run.run_id, path)), options);
      setProblem(null);
    } catch (error) {
      setProblem(error);
    }
    reload();
  };
  const post = (verb) => () => send(`/${verb}`, { method: "POST" });
  const change = (form) => send("", { method: "PATCH", body: { concurrency: Number(form.get("concurrency")) } });
  const ask = (name) => () => setAsked(name);
  const leave = () => setAsked(null);
  return html`
    ${run.state === "running" && html`<button type="button" onClick=${ask("pause")}>Pause</button>`}
    ${run.state === "paused" && html`<button type="button" onClick=${post("resume")}>Resume</button>`}
    ${STOPPED.includes(run.state) && html`<button type="button" onClick=${ask("resume")}>Resume</button>`}
    ${AT_WORK.includes(run.state) && html`
      <button type="button" onClick=${ask("concurrency")}>Concurrency …</button>
      <button type="button" class="danger" onClick=${ask("cancel")}>Cancel</button>`}
    ${problem && html`<span class="wrong" role="alert">${visible(problem.message)}</span>`}
    ${asked === "pause" && html`<${Confirm} title="Pause this run?" yes="Pause" onYes=${post("pause")} onNo=${leave}>
      <p>No further rollouts are started; the ${count(run.in_flight)} in flight are finished.</p></${Confirm}>`}
    ${asked === "resume" && html`<${Confirm} title="Go on with this run?" yes="Resume" onYes=${post("resume")} onNo=${leave}>
      <p>It goes on where it stopped: ${count(run.expected - run.completed)} rollouts are not finished.</p></${Confirm}>`}
    ${asked === "cancel" && html`<${Confirm} title="Cancel this run?" yes="Cancel the run" danger onYes=${post("cancel")} onNo=${leave}>
      <p>Rollouts in flight are dropped. What is finished stays, and the run can be resumed.</p></${Confirm}>`}
    ${asked === "concurrency" && html`<${Confirm} title="Rollouts in flight" yes="Change" onYes=${change} onNo=${leave}>
      <label for="concurrency">Most rollouts in flight</label>
      <input id="concurrency" name="concurrency" type="number" min="1" max="65536" required value=${run.concurrency} /></${Confirm}>`}
  `;
}

function Agents({ run, means }) {
  const agents = Object.entries(run.agents);
  return html`
    <section>
      <h2>Agents</h2>
      <${Scroll} label="Progress of each agent">
        <table>
          <thead><tr><th scope="col">Agent</th><th scope="col">Progress</th><th scope="col" class="num">Finished</th>
            <th scope="col" class="num">Given up</th><th scope="col" class="num">Expected</th><th scope="col">Mean reward, 95 %</th></tr></thead>
          <tbody>${agents.map(([name, agent]) => html`
            <tr key=${name}>
              <th scope="row"><a href=${url(["runs", run.run_id, "rollouts"], { filter: named("agent", name) })}><${Short} value=${name} /></a></th>
              <td class="wide"><${Progress} done=${agent.completed} failed=${agent.failed} of=${agent.expected} label=${`Progress of ${name}`} /></td>
              <td class="num">${count(agent.completed)}</td><td class="num">${count(agent.failed)}</td><td class="num">${count(agent.expected)}</td>
              <td>${interval(means?.agents?.[name]?.estimates?.mean_reward ?? { value: agent.mean_reward })}</td>
            </tr>`)}
          </tbody>
        </table>
      </${Scroll}>
    </section>
  `;
}

/** A filter for rollouts with this text in a column. */
export function named(column, text) {
  const quote = text.includes('"') ? "'" : '"';
  return `${column} == ${quote}${text}${quote}`;
}

const REWARDS = [{ ...LINE, label: "mean of a piece" }, { ...LINE, label: "mean of all so far", colour: "--two" }];
const TOKENS = [{ ...LINE, label: "tokens per second" }];

function OverTime({ timeline, id }) {
  const rewards = useMemo(() => rewardsOf(timeline), [timeline]);
  const tokens = useMemo(() => speeds(timeline), [timeline]);
  if (!timeline || !rewards.length) return null;
  const worst = () => url(["runs", id, "rollouts"], { sort: "reward" });
  return html`
    <section class="columns">
      <${Chart} title="Reward over time" label=${`Mean reward of ${rewards.length} pieces of the run, in order of completion; the last is ${number(rewards.at(-1)[1])}.`}
        time names=${["ended", "mean of a piece", "mean of all so far"]} rows=${rewards} series=${REWARDS} onPoint=${worst} file=${`${id}-rewards`} />
      <${Chart} title="Output tokens per second" label=${`Output tokens per second over time; ${rate(tokens.at(-1)?.[1])} at the end.`}
        time names=${["ended", "tokens per second"]} rows=${tokens} series=${TOKENS} file=${`${id}-tokens`} />
    </section>
  `;
}

/** Times, mean rewards of the pieces and the mean of all so far. */
function rewardsOf(timeline) {
  let total = 0;
  let rollouts = 0;
  const rows = [];
  for (const piece of timeline?.buckets ?? []) {
    if (!piece.until || piece.mean_reward === null) continue;
    total += piece.mean_reward * piece.rollouts;
    rollouts += piece.rollouts;
    rows.push([piece.until, piece.mean_reward, total / rollouts]);
  }
  return rows.sort((one, other) => one[0] - other[0]);
}

function Pressure({ run }) {
  return html`
    <section>
      <h2>Concurrency</h2>
      <dl class="stats">
        <${Stat} label="In flight">${count(run.in_flight)}</${Stat}>
        <${Stat} label="Concurrency">${run.concurrency ? count(run.concurrency) : "–"}</${Stat}>
        ${Object.entries(run.windows).map(([agent, size]) => html`
          <${Stat} key=${agent} label=${`Window of ${agent}`} note=${size < run.concurrency ? "held back by the service" : ""}>${count(size)}</${Stat}>`)}
      </dl>
      <p class="help">A window grows while an agent keeps up and shrinks when it asks for less.</p>
    </section>
  `;
}

function Failures({ run }) {
  const classes = Object.entries(run.failures).sort((one, other) => other[1] - one[1]);
  return html`
    <section>
      <h2>Failed attempts</h2>
      ${classes.length === 0 ? html`<p>None since the run was last started.</p>` : html`
        <table>
          <thead><tr><th scope="col">Where and why</th><th scope="col" class="num">Attempts</th></tr></thead>
          <tbody>${classes.map(([name, amount]) => html`<tr key=${name}><th scope="row"><${Short} value=${name} /></th><td class="num">${count(amount)}</td></tr>`)}</tbody>
        </table>`}
      ${run.failed > 0 && html`<p><a href=${url(["runs", run.run_id, "rollouts"], { filter: 'failure != ""' })}>${count(run.failed)} given up</a></p>`}
    </section>
  `;
}
