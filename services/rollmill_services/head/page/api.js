// Talks to the head, and through its gateway to the collector and the profiler.
import { useCallback, useEffect, useRef, useState } from "./vendor/preact.js";

export const LOGIN_NEEDED = "rollmill-login-needed";

const PATIENCE_MS = 130_000; // a little longer than the gateway's own

/** What a service answered instead of what was asked for; `status` is 0 when there was no answer at all. */
export class Problem extends Error {
  constructor(status, title, detail, type = "") {
    super(detail || title);
    this.status = status;
    this.title = title;
    this.type = type;
  }
}

export const head = (path) => `/api/head${path}`;
export const collector = (path) => `/api/collector${path}`;
export const profiler = (path) => `/api/profiler${path}`;

/** Path of a run's resource, its id escaped. */
export const ofRun = (id, rest = "") => `/v1/runs/${encodeURIComponent(id)}${rest}`;

/** A query string of what has a value. */
export function query(values) {
  const given = Object.entries(values).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

/** Send a request; the answer as JSON, or a Problem is thrown. */
export async function call(path, { method = "GET", body, form, signal } = {}) {
  let answer;
  const late = AbortSignal.timeout(PATIENCE_MS);
  try {
    answer = await fetch(path, {
      method,
      signal: signal ? AbortSignal.any([signal, late]) : late,
      body: form ?? (body === undefined ? undefined : JSON.stringify(body)),
      headers: body === undefined ? {} : { "content-type": "application/json" },
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "No connection", "The head does not answer.");
  }
  if (answer.status === 204) return null;
  const text = await answer.text();
  if (answer.ok) return JSON.parse(text);
  const problem = problemOf(answer.status, text);
  if (answer.status === 401) dispatchEvent(new CustomEvent(LOGIN_NEEDED));
  throw problem;
}

function problemOf(status, text) {
  try {
    const told = JSON.parse(text);
    return new Problem(status, String(told.title), String(told.detail), String(told.type));
  } catch {
    return new Problem(status, `HTTP ${status}`, text.slice(0, 300));
  }
}

/**
 * Ask for a path, and again every so many seconds while the page is looked at.
 *
 * What was answered stays while a later question fails, so that a lost connection does not empty the page.
 */
export function useData(path, { every = 0 } = {}) {
  const [state, setState] = useState({ path: null, data: null, problem: null });
  const [round, setRound] = useState(0);
  const reload = useCallback(() => setRound((number) => number + 1), []);
  const seconds = useRef(every);
  seconds.current = every;
  useEffect(() => {
    if (path === null) return undefined;
    const leaving = new AbortController();
    let timer;
    const ask = async () => {
      try {
        if (!document.hidden || round === 0) {
          const data = await call(path, { signal: leaving.signal });
          setState({ path, data, problem: null });
        }
      } catch (problem) {
        if (problem.name === "AbortError") return;
        setState((old) => ({ path, data: old.path === path ? old.data : null, problem }));
      }
      if (seconds.current && !leaving.signal.aborted) timer = setTimeout(ask, seconds.current * 1000);
    };
    ask();
    return () => {
      leaving.abort();
      clearTimeout(timer);
    };
  }, [path, round, Boolean(every)]);
  const current = state.path === path;
  return {
    data: current ? state.data : null,
    problem: current ? state.problem : null,
    loading: path !== null && !(current && (state.data !== null || state.problem !== null)),
    reload,
  };
}
