// Charts by uPlot, which is loaded with the first one. Each has its numbers as a table, for those who do not see it.
import { go } from "../router.js";
import { html, useEffect, useRef, useState } from "../vendor/preact.js";

const STYLESHEET = "/ui/static/vendor/uplot.css";
const MOST_IN_TABLE = 200;
const WHOLE = Array.from({ length: 9 }, (_, power) => [1, 2, 5].map((step) => step * 10 ** power)).flat();

export const LINE = { kind: "line", colour: "--one" };
export const POINTS = { kind: "points", colour: "--one" };
export const BARS = { kind: "bars", colour: "--one" };

let loading = null;

function load() {
  loading ??= import("../vendor/uplot.js").then((module) => {
    document.head.append(Object.assign(document.createElement("link"), { rel: "stylesheet", href: STYLESHEET }));
    return module.default;
  });
  return loading;
}

/**
 * A chart under its title.
 *
 * @param rows lists of numbers: x, then one value of each series, null for none; x ascending
 * @param series of each: label, kind, colour (a custom property), and `band` on two that bound one
 * @param label says in words what it shows
 * @param time whether x is in Unix seconds
 * @param names of x and the series, for the table
 * @param ticks labels of x = 0, 1, 2 ..., instead of numbers; `short` ones stand under the chart
 * @param unit whether y is within 0 to 1
 * @param onPoint from the number of a row and of a series to the address that a click leads to
 */
export function Chart({ title, label, rows, series, names, file, time = false, ticks = null, short = ticks, unit = false, onPoint = null, note = null }) {
  const place = useRef(null);
  const drawn = useRef(null);
  const latest = useRef(null);
  latest.current = { rows, onPoint };
  const [dark, setDark] = useState(() => matchMedia("(prefers-color-scheme: dark)").matches);
  useEffect(() => {
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    const changed = () => setDark(scheme.matches);
    scheme.addEventListener("change", changed);
    return () => scheme.removeEventListener("change", changed);
  }, []);
  useEffect(() => {
    let gone = false;
    let watcher;
    load().then((Plot) => {
      if (gone || !place.current) return;
      const width = place.current.clientWidth;
      const data = columns(latest.current.rows, series.length);
      drawn.current = new Plot(options(Plot, { width, series, time, ticks: short, unit, latest }), data, place.current);
      watcher = new ResizeObserver(([entry]) => drawn.current?.setSize({ width: entry.contentRect.width, height: 260 }));
      watcher.observe(place.current);
    });
    return () => {
      gone = true;
      watcher?.disconnect();
      drawn.current?.destroy();
      drawn.current = null;
    };
  }, [dark, series.length, short?.join()]);
  useEffect(() => drawn.current?.setData(columns(rows, series.length)), [rows]);
  const download = () => save(drawn.current.ctx.canvas, `${file}.png`);
  return html`
    <figure>
      <figcaption><h2>${title}</h2> <button type="button" class="quiet" onClick=${download} aria-label=${`Save ${title} as PNG`}>PNG</button></figcaption>
      <div class="chart" ref=${place} role="img" aria-label=${label} />
      ${note && html`<p class="help">${note}</p>`}
      <${Numbers} rows=${rows} names=${names ?? ["x", ...series.map((one) => one.label)]} title=${title} time=${time} ticks=${ticks} onPoint=${onPoint} />
    </figure>
  `;
}

function Numbers({ rows, names, title, time, ticks, onPoint }) {
  const [open, setOpen] = useState(false);
  const first = (x) => (ticks ? ticks[x] : time ? new Date(x * 1000).toISOString() : x);
  return html`
    <details onToggle=${(event) => setOpen(event.target.open)}>
      <summary>The numbers</summary>
      ${open && html`
        <div class="scroll" tabindex="0" role="region" aria-label=${`Numbers of ${title}`}>
          <table>
            <thead><tr>${names.map((name) => html`<th scope="col" class="num">${name}</th>`)}</tr></thead>
            <tbody>${rows.slice(0, MOST_IN_TABLE).map(([x, ...values], at) => html`
              <tr><th scope="row" class="num">${onPoint ? html`<a href=${onPoint(at, 0)}>${first(x)}</a>` : first(x)}</th>
                ${values.map((value) => html`<td class="num">${value === null ? "–" : +value.toPrecision(6)}</td>`)}</tr>`)}
            </tbody>
          </table>
        </div>
        ${rows.length > MOST_IN_TABLE && html`<p class="help">The first ${MOST_IN_TABLE} of ${rows.length}.</p>`}`}
    </details>
  `;
}

function columns(rows, amount) {
  return Array.from({ length: amount + 1 }, (_, column) => rows.map((row) => row[column] ?? null));
}

function options(Plot, { width, series, time, ticks, unit, latest }) {
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
  const bands = series.flatMap((one, at) => (one.band ? [{ series: [at + 1, at + 2], fill: colour(one.band) }] : []));
  return {
    width,
    height: 260,
    bands,
    legend: { show: series.length > 1, live: false },
    cursor: { drag: { x: false, y: false }, points: { show: Boolean(latest.current.onPoint) } },
    scales: {
      x: { time, ...(ticks ? { range: [-0.6, ticks.length - 0.4] } : {}) },
      y: unit ? { range: [-0.02, 1.02] } : { range: (_, low, high) => [Math.min(0, low ?? 0), high > 0 ? high * 1.06 : 1] },
    },
    axes: [
      { ...axis, ...(time ? {} : { incrs: WHOLE }), ...(ticks ? { splits: () => ticks.map((_, at) => at), values: (_, splits) => splits.map((at) => ticks[at] ?? "") } : {}) },
      { ...axis, size: 56, values: (_, splits) => splits.map(compact) },
    ],
    series: [{}, ...series.map((one) => drawing(Plot, one, colour))],
    hooks: latest.current.onPoint ? { ready: [(plot) => follow(plot, latest, series)] } : {},
  };
}

const compact = (value) => value.toLocaleString("en", { notation: "compact", maximumSignificantDigits: 4 });

function drawing(Plot, one, colour) {
  const stroke = colour(one.colour);
  const base = { label: one.label ?? "", stroke, width: 2, spanGaps: true };
  if (one.kind === "bars") return { ...base, fill: stroke, width: 0, paths: Plot.paths.bars({ size: [0.8, 60] }), points: { show: false } };
  if (one.kind === "points") return { ...base, paths: () => null, points: { show: true, size: 6, width: 0, fill: stroke } };
  if (one.kind === "edge") return { ...base, class: "edge", width: 0, points: { show: false } };
  return { ...base, points: { show: true, size: 6, fill: stroke } };
}

/** Lead from the point nearest to a click to what it is made of. */
function follow(plot, latest, series) {
  plot.over.style.cursor = "pointer";
  plot.over.addEventListener("click", (event) => {
    const box = plot.over.getBoundingClientRect();
    const nearest = nearestPoint(plot, series, event.clientX - box.left, event.clientY - box.top);
    if (nearest) go(latest.current.onPoint(nearest.row, nearest.series));
  });
}

function nearestPoint(plot, series, left, top) {
  let best = null;
  plot.data[0].forEach((x, row) => {
    series.forEach((one, at) => {
      const y = plot.data[at + 1][row];
      if (y === null || one.kind === "edge") return;
      const across = plot.valToPos(x, "x") - left;
      const down = one.kind === "points" ? plot.valToPos(y, "y") - top : 0;
      const distance = across * across + down * down;
      if (!best || distance < best.distance) best = { row, series: at, distance };
    });
  });
  return best;
}

function save(canvas, name) {
  canvas.toBlob((blob) => {
    const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
    link.click();
    URL.revokeObjectURL(link.href);
  });
}
