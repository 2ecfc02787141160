import { collector, profiler, query as asQuery, useData } from "../api.js";
import { count, number, range } from "../format.js";
import { Loading, Scroll, Stat, Trouble } from "../parts/common.js";
import { go, url } from "../router.js";
import { Short } from "../text.js";
import { html } from "../vendor/preact.js";

export function Compare({ query }) {
  const { a = "", b = "", force = "" } = query;
  const runs = useData(collector("/v1/runs"));
  const path = a && b ? profiler(`/v1/compare${asQuery({ a, b, force })}`) : null;
  const { data, problem, loading, reload } = useData(path);
  const ids = [...new Set([...(runs.data?.runs ?? []).map((run) => run.run_id), a, b])].filter(Boolean);
  const send = (event) => {
    event.preventDefault();
    const fields = new FormData(event.target);
    go(url(["compare"], { a: fields.get("a"), b: fields.get("b") }));
  };
  return html`
    <h1>Compare two runs</h1>
    <form class="asking" onSubmit=${send}>
      <${Choice} name="a" label="Run A" ids=${ids} value=${a} />
      <${Choice} name="b" label="Run B, beside it" ids=${ids} value=${b} />
      <button type="submit" class="primary">Compare</button>
    </form>
    <${Trouble} problem=${runs.problem} what="The collector" again=${runs.reload} />
    <${Trouble} problem=${problem} what="The comparison" again=${reload} />
    ${problem?.status === 409 && !force && html`<p><a href=${url(["compare"], { a, b, force: "true" })}>Compare them all the same</a></p>`}
    ${path && loading && html`<${Loading} what="the comparison" />`}
    ${data && html`<${Result} data=${data} a=${a} b=${b} />`}
  `;
}

const Choice = ({ name, label, ids, value }) => html`
  <div><label for=${name}>${label}</label>
    <select id=${name} name=${name} required>
      <option value="">choose</option>
      ${ids.map((id) => html`<option key=${id} value=${id} selected=${id === value}>${id}</option>`)}
    </select></div>
`;

function Result({ data, a, b }) {
  const remarks = [
    ...data.forced.map((text) => `Not the same: ${text}`),
    ...data.notes.map((text) => `Not the same, and may differ: ${text}`),
    ...data.only_a.map((name) => `Only in A: ${name}`),
    ...data.only_b.map((name) => `Only in B: ${name}`),
  ];
  return html`
    ${remarks.length > 0 && html`<ul class="help">${remarks.map((text) => html`<li><${Short} value=${text} room=${400} /></li>`)}</ul>`}
    ${Object.entries(data.agents).map(([name, agent]) => html`<${Agent} key=${name} name=${name} agent=${agent} a=${a} b=${b} />`)}
  `;
}

const Estimate = ({ label, estimate }) => html`<${Stat} label=${label} note=${range(estimate)}>${number(estimate.value)}</${Stat}>`;

function Agent({ name, agent, a, b }) {
  return html`
    <section>
      <h2><${Short} value=${name || "no agent"} /></h2>
      <dl class="stats">
        <${Estimate} label="Mean of A" estimate=${agent.mean_a} />
        <${Estimate} label="Mean of B" estimate=${agent.mean_b} />
        <${Estimate} label="B minus A" estimate=${agent.difference} />
        <${Stat} label="p-value">${number(agent.p_value)}</${Stat}>
        <${Stat} label="Tasks" note="in both">${count(agent.tasks.both)}</${Stat}>
        <${Stat} label="Better in A, in B, same">${count(agent.wins.a)}, ${count(agent.wins.b)}, ${count(agent.wins.ties)}</${Stat}>
      </dl>
      ${agent.moved_most.length > 0 && html`
        <h3>Tasks that moved most</h3>
        <${Scroll} label=${`Tasks of ${name} that moved most`}>
          <table>
            <thead><tr><th scope="col">Task</th><th scope="col" class="num">Mean of A</th><th scope="col" class="num">Mean of B</th>
              <th scope="col" class="num">Difference</th><th scope="col">Its rollouts</th></tr></thead>
            <tbody>${agent.moved_most.map((moved) => html`
              <tr key=${moved.task}><th scope="row">${moved.task}</th>
                <td class="num">${number(moved.mean_a)}</td><td class="num">${number(moved.mean_b)}</td>
                <td class=${`num ${moved.difference < 0 ? "wrong" : "right"}`}>${number(moved.difference)}</td>
                <td><a href=${url(["runs", a, "tasks", moved.task])}>in A</a> · <a href=${url(["runs", b, "tasks", moved.task])}>in B</a></td></tr>`)}
            </tbody>
          </table>
        </${Scroll}>`}
    </section>
  `;
}
