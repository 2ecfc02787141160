import { call, head, LOGIN_NEEDED } from "./api.js";
import { Loading } from "./parts/common.js";
import { followLinks, url, usePlace } from "./router.js";
import { html, render, useEffect, useRef, useState } from "./vendor/preact.js";
import { Compare } from "./views/compare.js";
import { Login } from "./views/login.js";
import { Profile } from "./views/profile.js";
import { Rollout } from "./views/rollout.js";
import { Rollouts } from "./views/rollouts.js";
import { Run } from "./views/run.js";
import { Runs } from "./views/runs.js";
import { Services } from "./views/services.js";
import { Start } from "./views/start.js";
import { Task } from "./views/task.js";

const SECTIONS = [["runs", "Runs"], ["compare", "Compare"], ["services", "Services"]];

function view({ parts, query }) {
  const [section = "runs", id, part, task, repeat] = parts;
  if (section === "services" && !id) return [Services, {}, "Services"];
  if (section === "compare" && !id) return [Compare, { query }, "Compare"];
  if (section === "start" && !id) return [Start, {}, "Start a run"];
  if (section !== "runs") return [Lost, {}, "Nothing here"];
  if (!id) return [Runs, {}, "Runs"];
  if (!part) return [Run, { id }, id];
  if (part === "profile") return [Profile, { id, query }, `Profile of ${id}`];
  if (part === "tasks" && task && !repeat) return [Task, { id, task, query }, `Task ${task} of ${id}`];
  if (part === "rollouts" && task && repeat) return [Rollout, { id, task, repeat }, `Rollout ${task}:${repeat} of ${id}`];
  if (part === "rollouts" && !task) return [Rollouts, { id, query }, `Rollouts of ${id}`];
  return [Lost, {}, "Nothing here"];
}

const Lost = () => html`<h1>Nothing here</h1><p>No view has this address. <a href=${url(["runs"])}>All runs</a></p>`;

function Page() {
  const place = usePlace();
  const [login, setLogin] = useState("unknown");
  const main = useRef(null);
  useEffect(() => {
    const needed = () => setLogin((old) => (old === "done" ? "ended" : "needed"));
    addEventListener(LOGIN_NEEDED, needed);
    call(head("/v1/services")).then(() => setLogin("done"), (problem) => problem.status !== 401 && setLogin("done"));
    return () => removeEventListener(LOGIN_NEEDED, needed);
  }, []);
  const [View, props, title] = view(place);
  useEffect(() => {
    document.title = `${title} · Rollmill`;
  }, [title]);
  const address = place.parts.join("/");
  const first = useRef(true);
  useEffect(() => {
    if (!first.current) main.current?.focus();
    first.current = false;
    scrollTo(0, 0);
  }, [address]);
  if (login === "unknown") return html`<main><${Loading} what="Rollmill" /></main>`;
  if (login !== "done") return html`<${Login} ended=${login === "ended"} onDone=${() => setLogin("done")} />`;
  return html`
    <a class="skip" href="#main">Skip to the content</a>
    <header class="top">
      <a class="brand" href=${url(["runs"])}>Rollmill</a>
      <nav aria-label="Sections">
        ${SECTIONS.map(([name, label]) => html`
          <a href=${url([name])} aria-current=${(place.parts[0] ?? "runs") === name ? "page" : undefined}>${label}</a>`)}
      </nav>
      <a class="button primary" href=${url(["start"])}>Start a run</a>
      <button type="button" class="quiet" onClick=${logOut}>Log out</button>
    </header>
    <main id="main" ref=${main} tabindex="-1"><${View} key=${address} ...${props} /></main>
  `;
}

async function logOut() {
  await call("/logout", { method: "POST" });
  location.assign(url(["runs"]));
}

document.addEventListener("click", followLinks);
render(html`<${Page} />`, document.getElementById("page"));
