// Lines over the last minutes, as SVG.

const SPACE = "http://www.w3.org/2000/svg";
/// Room for the numbers beside and below the lines, px.
const LEFT = 52;
const BOTTOM = 16;
const TOP = 8;
const CLASSES = ["first", "second", "third"];

/// Points of several lines, the newest last, none older than `spanMs`.
export class Series {
  constructor(names, spanMs) {
    this.names = names;
    this.spanMs = spanMs;
    this.points = [];
  }

  /// Adds a point. `values`: one a line; NaN breaks it.
  add(at, values) {
    this.points.push({ at, values });
    while (this.points[0].at < at - this.spanMs) this.points.shift();
  }

  /// The last point's values.
  get last() {
    return this.points.at(-1)?.values ?? this.names.map(() => NaN);
  }
}

/// Draws a series into an `svg`. `unitText`: a value as text.
export function draw(svg, series, unitText) {
  const { width, height } = svg.getBoundingClientRect();
  if (width <= LEFT || height <= BOTTOM) return;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const now = series.points.at(-1)?.at ?? 0;
  const values = series.points.flatMap((point) => point.values).filter(Number.isFinite);
  const top = roundUp(Math.max(...values, 0));
  const x = (at) => LEFT + ((at - now + series.spanMs) / series.spanMs) * (width - LEFT - 4);
  const y = (value) => TOP + (1 - value / top) * (height - TOP - BOTTOM);
  const shapes = [0, 0.5, 1].flatMap((share) => [
    shape("line", { class: "axis", x1: LEFT, x2: width, y1: y(share * top), y2: y(share * top) }),
    label(unitText(share * top), LEFT - 6, y(share * top) + 4, "end"),
  ]);
  const minutes = Math.round(series.spanMs / 60_000);
  shapes.push(label(`${minutes} min ago`, LEFT, height - 2, "start"), label("now", width - 4, height - 2, "end"));
  series.names.forEach((_, index) => {
    for (const piece of pieces(series.points, index)) {
      const points = piece.map(([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
      shapes.push(shape("polyline", { class: CLASSES[index], points }));
    }
  });
  svg.replaceChildren(...shapes);
}

/// Which line is which, as elements.
export function keys(names) {
  return names.map((name, index) => {
    const line = shape("svg", { "aria-hidden": "true", viewBox: "0 0 26 10" },
      shape("polyline", { class: CLASSES[index], points: "0,5 26,5" }));
    const key = document.createElement("span");
    key.className = "key";
    const text = document.createElement("span");
    text.textContent = name;
    key.append(line, text);
    return key;
  });
}

/// The runs of neighboring points that have a value.
function pieces(points, index) {
  const runs = [[]];
  for (const { at, values } of points) {
    if (Number.isFinite(values[index])) runs.at(-1).push([at, values[index]]);
    else if (runs.at(-1).length > 0) runs.push([]);
  }
  return runs.filter((run) => run.length > 0);
}

/// The next of 1, 2 or 5 times a power of ten.
function roundUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((bound) => bound >= value);
}

function label(text, x, y, anchor) {
  const element = shape("text", { x, y, "text-anchor": anchor });
  element.textContent = text;
  return element;
}

function shape(tag, attributes, ...children) {
  const element = document.createElementNS(SPACE, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}
