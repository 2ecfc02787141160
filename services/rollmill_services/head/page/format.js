// Numbers and times for people. Unknown is a dash, never 0.
const NONE = "–";
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

export const count = (value) => (isNumber(value) ? Math.round(value).toLocaleString("en") : NONE);
export const number = (value, digits = 3) => (isNumber(value) ? value.toFixed(digits) : NONE);
export const percent = (value, digits = 1) => (isNumber(value) ? `${(100 * value).toFixed(digits)} %` : NONE);

/** The interval that a value is thought to be in; empty when it is not known. */
export function range(estimate, format = number) {
  return isNumber(estimate.low) && isNumber(estimate.high) ? `[${format(estimate.low)}, ${format(estimate.high)}]` : "";
}

/** A value and its interval. */
export function interval(estimate, format = number) {
  return estimate && isNumber(estimate.value) ? `${format(estimate.value)} ${range(estimate, format)}`.trim() : NONE;
}

export function rate(value) {
  if (!isNumber(value)) return NONE;
  return value >= 100 ? count(value) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

export function duration(seconds) {
  if (!isNumber(seconds)) return NONE;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 100) return `${seconds.toFixed(1)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

export function moment(value) {
  const when = new Date(value);
  if (Number.isNaN(when.getTime())) return NONE;
  return when.toLocaleString("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
}

export const plural = (amount, word) => `${count(amount)} ${word}${amount === 1 ? "" : "s"}`;
