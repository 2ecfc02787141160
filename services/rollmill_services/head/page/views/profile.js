import { ofRun, profiler, useData } from "../api.js";
import { count, interval, number, percent, plural, range } from "../format.js";
import { BARS, Chart, LINE, POINTS } from "../parts/chart.js";
import { Loading, Scroll, Stat, Trouble } from "../parts/common.js";
import { go, url } from "../router.js";
import { Short } from "../text.js";
import { html, useMemo, useState } from "../vendor/preact.js";
import { named, RunHead } from "./run.js";

export function Profile({ id, query }) {
  const path = profiler(ofRun(id, "/profile?level=summary"));
  const [live, setLive] = useState(true);
  const { data, problem, loading, reload } = useData(path, { every: live ? 10 : 0 });
  if (data && live !== (data.state === "running")) setLive(data.state === "running");
  const agents = Object.keys(data?.summaries ?? {});
  const agent = agents.includes(query.agent) ? query.agent : agents[0];
  const summary = data?.summaries[agent];
  return html`
    <${RunHead} id=${id} at="profile" />
    <${Trouble} problem=${problem} what="The profile" again=${reload} back=${{ href: url(["runs", id]), label: "The run" }} />
    ${loading && html`<${Loading} what="the profile" />`}
    ${agents.length > 1 && html`
      <p><label for="agent">Agent</label>${" "}
        <select id="agent" value=${agent} onChange=${(event) => go(url(["runs", id, "profile"], { agent: event.target.value }), { replace: true })}>
          ${agents.map((name) => html`<option key=${name} value=${name} selected=${name === agent}>${name || "no agent"}</option>`)}
        </select></p>`}
    ${summary && html`<${Agent} key=${agent} id=${id} agent=${agent} summary=${summary} />`}
    ${data && html`<${Downloads} id=${id} />`}
  `;
}

function Agent({ id, agent, summary }) {
  const rollouts = (filter, sort) => url(["runs", id, "rollouts"], { filter: [named("agent", agent), filter].filter(Boolean).join(" and "), sort });
  return html`
    <${Headlines} summary=${summary} rollouts=${rollouts} />
    ${summary.rollouts > 0 && html`
      <div class="columns">
        <${SolveRate} summary=${summary} rollouts=${rollouts} file=${`${id}-solve-rate`} />
        <${Curve} summary=${summary} rollouts=${rollouts} file=${`${id}-pass-at-k`} />
        <${Length} summary=${summary} id=${id} file=${`${id}-length`} />
        <${Hardest} summary=${summary} id=${id} />
      </div>`}
    <${Failures} failures=${summary.failures?.by_class ?? {}} rollouts=${rollouts} />
  `;
}

function Headlines({ summary, rollouts }) {
  const { estimates } = summary;
  const top = summary.curve.at(-1)?.k;
  const shown = [
    ["Mean reward", estimates.mean_reward, number, rollouts("", "reward")],
    [`pass@${top}`, estimates[`pass@${top}`], number, rollouts("pass_rate == 0")],
    [`pass^${top}`, estimates[`pass^${top}`], number, rollouts("pass_rate < 1")],
    [`majority@${top}`, estimates[`majority@${top}`], number, null],
    ["Zero variance", estimates.zero_variance_share, percent, rollouts("std_reward == 0")],
    ["No answer", estimates.no_answer, percent, null],
    ["Truncated", estimates.truncation_rate, percent, rollouts("truncated == 1")],
    ["Tool errors per rollout", estimates.tool_errors_per_rollout, number, rollouts("tool_errors > 0")],
  ];
  const done = summary.expected_rollouts ? `of ${count(summary.expected_rollouts)}` : "";
  return html`
    <dl class="stats">
      <${Stat} label="Rollouts" note=${done}><a href=${rollouts("")}>${count(summary.rollouts)}</a></${Stat}>
      <${Stat} label="Tasks">${count(summary.tasks)}</${Stat}>
      ${shown.filter(([, estimate]) => typeof estimate?.value === "number").map(([label, estimate, format, href]) => html`
        <${Stat} key=${label} label=${label} note=${range(estimate, format)}>${href ? html`<a href=${href}>${format(estimate.value)}</a>` : format(estimate.value)}</${Stat}>`)}
    </dl>
    <p class="help">In brackets: 95 % intervals over tasks. An underlined number leads to the rollouts behind it.</p>
  `;
}

function SolveRate({ summary, rollouts, file }) {
  const { none, some, all, bins, edges } = summary.solve_rate;
  const rows = useMemo(() => [none, ...bins, all].map((amount, at) => [at, amount]), [none, all, bins.join()]);
  const ticks = ["none", ...bins.map((_, at) => `${Math.round(100 * edges[at])}–${Math.round(100 * edges[at + 1])} %`), "all"];
  const short = ["none", ...bins.map((_, at) => `${Math.round(100 * edges[at + 1])}`), "all"];
  const onPoint = (at) => {
    if (at === 0) return rollouts("pass_rate == 0");
    if (at === rows.length - 1) return rollouts("pass_rate == 1");
    const top = at === bins.length ? "pass_rate < 1" : `pass_rate < ${edges[at]}`;
    return rollouts(`pass_rate > 0 and pass_rate >= ${edges[at - 1]} and ${top}`);
  };
  return html`<${Chart} title="Solve rate" file=${file} rows=${rows} ticks=${ticks} short=${short} onPoint=${onPoint} names=${["rollouts correct", "tasks"]}
    series=${[{ ...BARS, label: "tasks" }]} label=${`Tasks by the share of their rollouts that are correct: ${none} never, ${some} sometimes, ${all} always.`}
    note=${`${plural(none, "task")} never solved, ${count(some)} sometimes, ${count(all)} always. A number is the most percent of rollouts correct; a bar leads to its rollouts.`} />`;
}

function Curve({ summary, rollouts, file }) {
  const rows = useMemo(() => summary.curve.map((point) => [
    point.k, point["pass@k"].value, point["pass@k"].high ?? null, point["pass@k"].low ?? null,
    point["pass^k"].value, point["pass^k"].high ?? null, point["pass^k"].low ?? null,
  ].map((value) => value ?? null)), [JSON.stringify(summary.curve)]);
  const last = summary.curve.at(-1);
  const series = [
    { ...LINE, label: "pass@k" }, { kind: "edge", colour: "--one", label: "pass@k high", band: "--one-band" }, { kind: "edge", colour: "--one", label: "pass@k low" },
    { ...LINE, colour: "--two", label: "pass^k" }, { kind: "edge", colour: "--two", label: "pass^k high", band: "--two-band" }, { kind: "edge", colour: "--two", label: "pass^k low" },
  ];
  return html`<${Chart} title="pass@k and pass^k" file=${file} rows=${rows} series=${series} unit names=${["k", ...series.map((one) => one.label)]}
    onPoint=${(at, one) => rollouts(`num_rollouts >= ${rows[at]?.[0] ?? 1} and ${one < 3 ? "pass_rate == 0" : "pass_rate < 1"}`)}
    label=${`At k = ${last?.k}, pass@k is ${number(last?.["pass@k"].value)} and pass^k is ${number(last?.["pass^k"].value)}.`}
    note="pass@k: at least one of k rollouts is correct; pass^k: all k are. Bands are 95 % intervals. A point leads to the rollouts that keep it down." />`;
}

function Length({ summary, id, file }) {
  const points = useMemo(() => [...(summary.length?.points ?? [])].sort((one, other) => one[0] - other[0]), [JSON.stringify(summary.length?.points)]);
  const at = summary.correct_at;
  const rows = useMemo(() => points.map(([tokens, score]) => [tokens, score >= at ? score : null, score < at ? score : null]), [points]);
  if (!points.length) return null;
  const { spearman, rollouts } = summary.length;
  return html`<${Chart} title="Reward against length" file=${file} rows=${rows} names=${["output tokens", "right", "wrong"]}
    series=${[{ ...POINTS, colour: "--good", label: "right" }, { ...POINTS, colour: "--bad", label: "wrong" }]}
    onPoint=${(row) => url(["runs", id, "rollouts", points[row][2], points[row][3]])}
    label=${`Score against output tokens of ${count(points.length)} rollouts${typeof spearman === "number" ? `; Spearman correlation ${spearman.toFixed(2)}` : ""}.`}
    note=${`${points.length < rollouts ? `${count(points.length)} of ${count(rollouts)} rollouts, drawn at random. ` : ""}${typeof spearman === "number" ? `Spearman ${spearman.toFixed(2)}. ` : ""}A point leads to its rollout.`} />`;
}

function Hardest({ summary, id }) {
  return html`
    <section>
      <h2>Hardest tasks</h2>
      <${Scroll} label="Hardest tasks">
        <table>
          <thead><tr><th scope="col">Task</th><th scope="col">Mean score, 95 %</th><th scope="col" class="num">Rollouts</th><th scope="col">Read</th></tr></thead>
          <tbody>${summary.hardest.map((task) => html`
            <tr key=${task.task}><th scope="row"><a href=${url(["runs", id, "rollouts"], { filter: `task == ${task.task}`, sort: "repeat" })}>Task ${task.task}</a></th>
              <td>${interval({ value: task.mean_reward, low: task.low, high: task.high })}</td>
              <td class="num">${count(task.num_rollouts)}</td>
              <td><a href=${url(["runs", id, "tasks", task.task])}>side by side</a></td></tr>`)}
          </tbody>
        </table>
      </${Scroll}>
    </section>
  `;
}

function Failures({ failures, rollouts }) {
  const classes = Object.entries(failures);
  if (!classes.length) return null;
  return html`
    <section><h2>Failed attempts</h2>
      <ul>${classes.map(([name, amount]) => html`<li key=${name}><a href=${rollouts(named("failure", name))}><${Short} value=${name} /></a>: ${count(amount)}</li>`)}</ul>
    </section>
  `;
}

function Downloads({ id }) {
  const path = (query) => profiler(ofRun(id, `/profile?${query}`));
  const files = [
    ["Tasks, CSV", "format=csv&level=task", `${id}-tasks.csv`],
    ["Tasks, Parquet", "format=parquet&level=task", `${id}-tasks.parquet`],
    ["Estimates, CSV", "format=csv&level=summary", `${id}-estimates.csv`],
    ["Estimates, Parquet", "format=parquet&level=summary", `${id}-estimates.parquet`],
    ["Report with its figures as SVG, HTML", "format=html", `${id}-report.html`],
  ];
  return html`
    <section><h2>Downloads</h2>
      <ul class="downloads">${files.map(([label, query, file]) => html`<li key=${file}><a href=${path(query)} download=${file}>${label}</a></li>`)}</ul>
    </section>
  `;
}
