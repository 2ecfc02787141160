import { call, ofRun, profiler, query as asQuery } from "../api.js";
import { count, duration, number } from "../format.js";
import { Trouble } from "../parts/common.js";
import { go, url } from "../router.js";
import { Short } from "../text.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor/preact.js";
import { RunHead } from "./run.js";

const PAGE = 100;
const KEPT_PAGES = 30;
const ROW = 32;
const BEYOND = 8;
const TALLEST = 30_000_000;

const COLUMNS = [
  { name: "task", label: "Task", show: (row) => row.task },
  { name: "repeat", label: "Repeat", show: (row) => row.repeat },
  { name: "reward", label: "Reward", show: (row) => number(row.reward) },
  { name: "agent", label: "Agent", text: true, show: (row) => html`<${Short} value=${row.agent ?? "–"} room=${60} />` },
  { name: "output_tokens", label: "Tokens", show: (row) => count(row.output_tokens) },
  { name: "turns", label: "Turns", show: (row) => count(row.turns) },
  { name: "seconds", label: "Latency", show: (row) => duration(row.seconds) },
  { name: "failure", label: "Failure", text: true, show: (row) => (row.failure ? html`<span class="wrong"><${Short} value=${row.failure} room=${60} /></span>` : "") },
];

export function Rollouts({ id, query }) {
  const { filter = "", sort = "", q = "" } = query;
  const change = (values) => go(url(["runs", id, "rollouts"], { filter, sort, q, ...values }));
  const table = useTable(profiler(ofRun(id, "/rollouts/table")), { filter, sort, q });
  const asked = filter || q;
  return html`
    <${RunHead} id=${id} at="rollouts" />
    <${Asking} key=${`${filter}\n${q}`} filter=${filter} q=${q} columns=${table.columns} onAsk=${change} />
    <${Trouble} problem=${table.problem} what=${asked && table.problem?.status === 422 ? "The filter" : "The rollouts"}
      again=${table.reload} back=${asked ? { href: url(["runs", id, "rollouts"]), label: "All rollouts of this run" } : { href: url(["runs"]), label: "All runs" }} />
    <p class="help" role="status">${table.total === null ? (table.problem ? "" : "Loading …") : html`${count(table.total)} rollouts${asked ? " found" : ""}`}
      ${asked && html` · <a href=${url(["runs", id, "rollouts"], { sort })}>show all</a>`}</p>
    ${table.total > 0 && html`<${Grid} id=${id} table=${table} sort=${sort} onSort=${(name) => change({ sort: name })} />`}
  `;
}

function Asking({ filter, q, columns, onAsk }) {
  const send = (event) => {
    event.preventDefault();
    const fields = new FormData(event.target);
    onAsk({ filter: fields.get("filter").trim(), q: fields.get("q") });
  };
  return html`
    <form class="asking" role="search" onSubmit=${send}>
      <div><label for="filter">Filter</label>
        <input id="filter" name="filter" value=${filter} spellcheck="false" autocomplete="off" aria-describedby="filter-help"
          placeholder="reward < 1 and turns > 4" /></div>
      <div><label for="q">Text</label><input id="q" name="q" type="search" value=${q} autocomplete="off" placeholder="in messages and fields" /></div>
      <button type="submit" class="primary">Show</button>
      <details id="filter-help" class="help"><summary>What a filter can say</summary>
        <p>Comparisons of columns, numbers and quoted texts, joined by <code>and</code>, <code>or</code>, <code>not</code> and
          parentheses. <code>num_rollouts</code>, <code>mean_reward</code>, <code>std_reward</code> and <code>pass_rate</code> are those of the
          rollout's task.</p>
        <p>Columns of this run: ${(columns ?? []).map((name) => html`<code>${name}</code> `)}</p>
      </details>
    </form>
  `;
}

/** The rows of a table, asked for page by page as they are looked at. */
function useTable(path, asked) {
  const address = path + asQuery(asked);
  const [state, setState] = useState({ address: null, total: null, columns: null, problem: null });
  const [round, setRound] = useState(0);
  const pages = useRef(new Map());
  const wanted = useRef(new Set());
  const [, redraw] = useState(0);
  const load = async (page, of = address) => {
    if (wanted.current.has(page)) return;
    wanted.current.add(page);
    try {
      const found = await call(path + asQuery({ ...asked, offset: page * PAGE, limit: PAGE }));
      if (current.current !== of) return;
      pages.current.set(page, found.rollouts);
      if (pages.current.size > KEPT_PAGES) pages.current.delete(pages.current.keys().next().value);
      setState({ address: of, total: found.total, columns: found.columns, problem: null });
    } catch (problem) {
      if (current.current === of) setState((old) => ({ ...old, address: of, total: old.address === of ? old.total : null, problem }));
    } finally {
      if (current.current === of) wanted.current.delete(page);
      redraw((number) => number + 1);
    }
  };
  const current = useRef(address);
  useEffect(() => {
    current.current = address;
    pages.current.clear();
    wanted.current.clear();
    load(0, address);
  }, [address, round]);
  const fresh = state.address === address;
  return {
    total: fresh ? state.total : null,
    columns: state.columns,
    problem: fresh ? state.problem : null,
    reload: () => setRound(round + 1),
    row: (at) => pages.current.get(Math.floor(at / PAGE))?.[at % PAGE],
    need: (from, to) => {
      for (let page = Math.floor(from / PAGE); page <= Math.floor(to / PAGE); page += 1) if (!pages.current.has(page)) load(page);
    },
  };
}

/** As many rows as fit; the rest is height. The arrow keys move through all of them, Enter opens one. */
function Grid({ id, table, sort, onSort }) {
  const scroller = useRef(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const [active, setActive] = useState(0);
  const shownTotal = Math.min(table.total, Math.floor(TALLEST / ROW));
  const first = Math.max(0, Math.floor(view.top / ROW) - BEYOND);
  const last = Math.min(shownTotal - 1, Math.ceil((view.top + view.height) / ROW) + BEYOND);
  useEffect(() => table.need(first, last));
  useLayoutEffect(() => {
    const measured = () => setView((old) => ({ ...old, height: scroller.current.clientHeight }));
    measured();
    const watcher = new ResizeObserver(measured);
    watcher.observe(scroller.current);
    return () => watcher.disconnect();
  }, []);
  const at = Math.min(active, shownTotal - 1);
  const move = (to) => {
    const next = Math.max(0, Math.min(shownTotal - 1, to));
    setActive(next);
    const box = scroller.current;
    const room = box.clientHeight - ROW;
    if (next * ROW < box.scrollTop) box.scrollTop = next * ROW;
    else if ((next + 1) * ROW > box.scrollTop + room) box.scrollTop = (next + 1) * ROW - room;
  };
  const page = Math.max(1, Math.floor(view.height / ROW) - 2);
  const steps = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: shownTotal - 1 };
  const pressed = (event) => {
    if (event.target.closest("button")) return;
    if (event.key in steps) {
      event.preventDefault();
      move(steps[event.key]);
    } else if (event.key === "Enter" && table.row(at) && event.target === scroller.current) {
      go(addressOf(id, table.row(at)));
    }
  };
  const rows = [];
  for (let number = first; number <= last; number += 1) rows.push(number);
  return html`
    <div class="grid-table" ref=${scroller} role="grid" tabindex="0" aria-label="Rollouts" aria-rowcount=${table.total + 1}
      aria-activedescendant=${at >= first && at <= last ? `row-${at}` : undefined}
      onScroll=${(event) => setView({ top: event.target.scrollTop, height: event.target.clientHeight })} onKeyDown=${pressed}>
      <div role="row" class="grid-row heads" aria-rowindex="1">
        ${COLUMNS.map((column) => html`<${Head} key=${column.name} column=${column} sort=${sort} onSort=${onSort} />`)}
      </div>
      <div role="rowgroup" class="grid-body" style=${{ height: `${shownTotal * ROW}px` }}>
        ${rows.map((number) => html`<${Row} key=${number} id=${id} number=${number} row=${table.row(number)} active=${number === at} onPick=${setActive} />`)}
      </div>
    </div>
    ${shownTotal < table.total && html`<p class="help">The first ${count(shownTotal)} can be scrolled to; sort or filter to see others.</p>`}
  `;
}

const addressOf = (id, row) => url(["runs", id, "rollouts", row.task, row.repeat]);

function Head({ column, sort, onSort }) {
  const up = sort === column.name;
  const down = sort === `-${column.name}`;
  const next = up ? `-${column.name}` : down ? "" : column.name;
  return html`
    <div role="columnheader" class=${column.text ? "" : "num"} aria-sort=${up ? "ascending" : down ? "descending" : "none"}>
      <button type="button" class="sort" onClick=${() => onSort(next)}>${column.label}<span aria-hidden="true">${up ? " ▲" : down ? " ▼" : ""}</span></button>
    </div>
  `;
}

function Row({ id, number: at, row, active, onPick }) {
  const open = (event) => {
    if (!row || event.target.closest("a")) return;
    onPick(at);
    go(addressOf(id, row));
  };
  return html`
    <div role="row" id=${`row-${at}`} class=${`grid-row${active ? " active" : ""}`} aria-rowindex=${at + 2} aria-selected=${active}
      style=${{ top: `${at * ROW}px` }} onClick=${open}>
      ${COLUMNS.map((column, place) => html`
        <div key=${column.name} role="gridcell" class=${column.text ? "" : "num"}>
          ${row ? (place === 0 ? html`<a tabindex="-1" href=${addressOf(id, row)}>${column.show(row)}</a>` : column.show(row)) : "…"}
        </div>`)}
    </div>
  `;
}
