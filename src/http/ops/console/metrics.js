// Prometheus' text format, as this server writes it, and what follows from two readings of it.

/// One reading: each line's labels and value, by the metric's name.
export class Reading {
  /// `at`: when it was read, ms of any clock that does not jump.
  constructor(text, at) {
    this.at = at;
    this.lines = new Map();
    for (const line of text.split("\n")) {
      const match = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)$/.exec(line);
      if (match === null) continue;
      const [, name, labels = "", value] = match;
      if (!this.lines.has(name)) this.lines.set(name, []);
      this.lines.get(name).push({ labels: labelsOf(labels), value: numberOf(value) });
    }
  }

  /// The sum of a metric's lines that have these labels; NaN where there is none.
  sum(name, labels = {}) {
    const lines = (this.lines.get(name) ?? []).filter((line) => matches(line, labels));
    return lines.length === 0 ? NaN : lines.reduce((sum, line) => sum + line.value, 0);
  }

  /// Each value of one label of a metric, with the sum of its lines.
  by(name, label) {
    const sums = new Map();
    for (const line of this.lines.get(name) ?? []) {
      const value = line.labels.get(label);
      if (value !== undefined) sums.set(value, (sums.get(value) ?? 0) + line.value);
    }
    return sums;
  }
}

/// The rate of a counter between two readings, per second; NaN if the server was restarted in between.
export function rate(before, after, name, labels = {}) {
  const gained = gain(before, after, name, labels);
  return (gained * 1000) / (after.at - before.at);
}

/// A quantile of a histogram between two readings, interpolated within its bucket as Prometheus does; NaN
/// if it has counted nothing.
export function quantile(before, after, name, share) {
  const buckets = new Map();
  for (const reading of [before, after]) {
    const sign = reading === after ? 1 : -1;
    for (const [bound, count] of reading.by(`${name}_bucket`, "le")) {
      const limit = numberOf(bound);
      buckets.set(limit, (buckets.get(limit) ?? 0) + sign * count);
    }
  }
  const bounds = [...buckets.keys()].sort((left, right) => left - right);
  const all = buckets.get(Infinity) ?? 0;
  if (!(all > 0)) return NaN;
  const wanted = share * all;
  let [lower, below] = [0, 0];
  for (const bound of bounds) {
    const count = buckets.get(bound);
    if (count >= wanted) {
      // Values above the last bound have no upper limit.
      if (bound === Infinity) return lower;
      return lower + ((bound - lower) * (wanted - below)) / (count - below);
    }
    [lower, below] = [bound, count];
  }
  return lower;
}

function gain(before, after, name, labels) {
  const [from, to] = [before.sum(name, labels), after.sum(name, labels)];
  // A counter that has counted nothing yet has no line.
  if (Number.isNaN(to)) return 0;
  const gained = to - (Number.isNaN(from) ? 0 : from);
  return gained < 0 ? NaN : gained;
}

function matches(line, labels) {
  return Object.entries(labels).every(([name, value]) => line.labels.get(name) === value);
}

function labelsOf(text) {
  const labels = new Map();
  for (const [, name, value] of text.matchAll(/([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"/g)) {
    labels.set(name, value.replace(/\\(.)/g, (_, escaped) => (escaped === "n" ? "\n" : escaped)));
  }
  return labels;
}

function numberOf(text) {
  if (text === "+Inf") return Infinity;
  return text === "-Inf" ? -Infinity : Number(text);
}
