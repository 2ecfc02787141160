import { head, useData } from "../api.js";
import { count, duration } from "../format.js";
import { Badge, Loading, Scroll, Trouble } from "../parts/common.js";
import { Short } from "../text.js";
import { html } from "../vendor/preact.js";

const ORDER = ["head", "collector", "profiler", "agent", "resources", "model"];

export function Services() {
  const { data, problem, loading, reload } = useData(head("/v1/services"), { every: 2 });
  const latency = useData(head("/v1/latencies"), { every: 5 }).data?.milliseconds ?? {};
  if (loading) return html`<h1>Services</h1><${Loading} what="services" />`;
  const services = data?.services ?? [];
  const kinds = ORDER.filter((kind) => services.some((service) => service.kind === kind));
  return html`
    <h1>Services</h1>
    <p class="lead">What is registered at this head, kept up to date. A replica that stops saying it is alive is gone from here
      within its lease.</p>
    <${Trouble} problem=${problem} what="The head" again=${reload} />
    ${kinds.map((kind) => html`<${Kind} key=${kind} kind=${kind} latency=${latency}
      services=${services.filter((service) => service.kind === kind)} />`)}
    ${data && !services.length && html`<p>Nothing is registered: start services with <code>rollmill up -c topology.yaml</code>.</p>`}
  `;
}

function Kind({ kind, services, latency }) {
  const names = new Set(services.map((service) => service.name)).size;
  return html`
    <section>
      <h2>${kind} <small>${count(names)} by name, ${count(services.length)} live</small></h2>
      <${Scroll} label=${`Services: ${kind}`}>
        <table>
          <thead><tr>
            <th scope="col">Name</th><th scope="col">State</th><th scope="col" class="num">In flight</th>
            <th scope="col" class="num">Latency</th><th scope="col" class="num">Last seen</th>
            <th scope="col">Version</th><th scope="col">Address</th>
          </tr></thead>
          <tbody>${services.map((service) => html`
            <tr key=${service.instance}>
              <th scope="row"><${Short} value=${service.name} /></th>
              <td><${Badge} state=${service.state} /></td>
              <td class="num">${count(service.in_flight)}${service.capacity ? ` of ${count(service.capacity)}` : ""}</td>
              <td class="num">${told(latency, service.instance)}</td>
              <td class="num">${duration(service.lease_age_seconds)} ago</td>
              <td><${Short} value=${service.version} /></td>
              <td><${Short} value=${service.url} /></td>
            </tr>`)}
          </tbody>
        </table>
      </${Scroll}>
    </section>
  `;
}

function told(latency, instance) {
  if (!(instance in latency)) return "…";
  return latency[instance] === null ? "no answer" : `${latency[instance].toFixed(1)} ms`;
}
