import { call, collector, head, useData } from "../api.js";
import { Trouble } from "../parts/common.js";
import { go, url } from "../router.js";
import { html, useState } from "../vendor/preact.js";

const NUMBERS = ["num_repeats", "concurrency", "limit", "temperature", "top_p", "max_output_tokens", "max_attempts", "timeout_seconds"];

export function Start() {
  const [source, setSource] = useState("input");
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(false);
  const services = useData(head("/v1/services?kind=agent"), { every: 10 });
  const agents = [...new Set((services.data?.services ?? []).map((service) => service.name))];
  const send = async (event) => {
    event.preventDefault();
    setBusy(true);
    try {
      const { body, form } = requestOf(new FormData(event.target), source);
      const run = await call(collector("/v1/runs"), { method: "POST", body, form });
      go(url(["runs", run.run_id]));
    } catch (error) {
      setProblem(error);
      setBusy(false);
    }
  };
  return html`
    <h1>Start a run</h1>
    <form class="start" onSubmit=${send}>
      <fieldset>
        <legend>Tasks</legend>
        <div class="choices" role="radiogroup" aria-label="Where the tasks come from">
          ${[["input", "A file of the data directory"], ["file", "A file to upload"], ["rows", "Pasted rows"]].map(([name, label]) => html`
            <label><input type="radio" name="source" value=${name} checked=${source === name} onChange=${() => setSource(name)} /> ${label}</label>`)}
        </div>
        ${source === "input" && html`<label for="input">Path inside the data directory</label>
          <input id="input" name="input" required placeholder="weather.jsonl" />`}
        ${source === "file" && html`<label for="file">JSON Lines</label><input id="file" name="file" type="file" required accept=".jsonl,.json,.txt" />`}
        ${source === "rows" && html`<label for="rows">One JSON object a line</label>
          <textarea id="rows" name="rows" rows="8" required spellcheck="false"
            placeholder='{"responses_create_params": {"input": "What is the weather in Paris?"}}'></textarea>`}
        <label for="agent">Agent of the rows that name none</label>
        <select id="agent" name="agent">
          <option value="">as the rows say</option>
          ${agents.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
        </select>
      </fieldset>
      <fieldset class="grid">
        <legend>Rollouts</legend>
        <${Field} name="num_repeats" label="Repeats of each task" min="1" value="4" />
        <${Field} name="concurrency" label="Concurrency" min="1" max="65536" value="64" />
        <${Field} name="limit" label="Only so many input lines" min="1" />
        <${Field} name="max_attempts" label="Attempts at one rollout" min="1" max="100" placeholder="3" />
        <${Field} name="timeout_seconds" label="Seconds for one attempt" min="1" placeholder="3600" />
        <label class="check"><input type="checkbox" name="add_seed" /> Seed each repeat</label>
      </fieldset>
      <fieldset class="grid">
        <legend>Sampling</legend>
        <${Field} name="temperature" label="Temperature" min="0" step="any" />
        <${Field} name="top_p" label="Top p" min="0" max="1" step="any" />
        <${Field} name="max_output_tokens" label="Most output tokens" min="1" />
        <div><label for="params">Further parameters, as JSON</label><input id="params" name="params" placeholder='{"top_k": 20}' spellcheck="false" /></div>
      </fieldset>
      <fieldset class="grid">
        <legend>Name</legend>
        <div><label for="id">Run id</label><input id="id" name="id" pattern="[A-Za-z0-9][A-Za-z0-9._\\-]{0,127}" placeholder="made from the time" /></div>
      </fieldset>
      <${Trouble} problem=${problem} />
      <p class="actions"><button type="submit" class="primary" disabled=${busy}>Start the run</button></p>
    </form>
  `;
}

const Field = ({ name, label, ...rest }) => html`
  <div><label for=${name}>${label}</label><input id=${name} name=${name} type="number" ...${rest} /></div>
`;

function requestOf(fields, source) {
  const request = {};
  for (const name of ["id", "agent"]) if (fields.get(name)) request[name] = fields.get(name);
  for (const name of NUMBERS) if (fields.get(name)) request[name] = Number(fields.get(name));
  if (fields.get("add_seed")) request.add_seed = true;
  if (fields.get("params")) request.params = parsed(fields.get("params"), "Further parameters");
  if (source === "file") {
    const form = new FormData();
    form.set("file", fields.get("file"));
    form.set("request", JSON.stringify(request));
    return { form };
  }
  if (source === "input") return { body: { ...request, input: fields.get("input") } };
  const lines = fields.get("rows").split("\n").map((line, at) => [line.trim(), at + 1]).filter(([line]) => line);
  return { body: { ...request, rows: lines.map(([line, at]) => parsed(line, `Line ${at}`)) } };
}

function parsed(text, where) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw Object.assign(new Error(`${where}: ${error.message}`), { title: "Not valid JSON" });
  }
}
