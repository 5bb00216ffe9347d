// Elements out of text. Strings become text nodes and attributes, never markup.

/// The element of the page with this id.
export function byId(id) {
  const element = document.getElementById(id);
  if (element === null) throw new Error(`the page lacks #${id}`);
  return element;
}

/// An element. `attributes`: a function is a listener of `on...`, `true` an attribute without a value, `false` and `null` none.
/// `children`: elements, or values that are written as text; `null` is left out.
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null).map(asNode));
  return element;
}

function asNode(child) {
  return child instanceof Node ? child : document.createTextNode(String(child));
}

/// Sets an element's text, and touches nothing if it is the same: a screen reader then reads changes only.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/// Shows rows of terms and values in a `dl`. Existing ones keep their elements, so that a selection or a reader stays where
/// it is. `rows`: `[term, value, class, more]`, the last an element behind the value.
export function showTerms(list, rows) {
  while (list.children.length > rows.length) list.lastElementChild.remove();
  rows.forEach(([term, value, kind = "", more = null], index) => {
    let row = list.children[index];
    if (row === undefined) {
      row = make("div", {}, make("dt"), make("dd"));
      list.append(row);
    }
    const [name, shown] = row.children;
    say(name, term);
    if (more === null) say(shown, String(value));
    else shown.replaceChildren(String(value), more);
    shown.className = kind;
  });
}

/// A table of rows. `columns`: `[heading, cell, class]`, where `cell` makes text or an element out of a row.
export function table(caption, columns, rows) {
  const cells = (row) => columns.map(([heading, cell, kind = null]) =>
    make("td", { class: kind, "data-name": heading }, cell(row)));
  const headings = columns.map(([heading, , kind = null]) => make("th", { scope: "col", class: kind }, heading));
  return make("table", { class: "cards" },
    make("caption", {}, caption),
    make("thead", {}, make("tr", {}, ...headings)),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...cells(row)))));
}

/// Replaces the content of a place.
export function replace(place, ...children) {
  keepFocus(place, () => place.replaceChildren(...children));
}

/// Replaces an element by its newer like.
export function renew(before, element) {
  keepFocus(before, () => before.replaceWith(element));
}

/// Makes a change below a place. The button that has the focus there keeps it, if its like is there afterwards.
function keepFocus(place, change) {
  const focused = document.activeElement;
  const key = place.contains(focused) ? focused.dataset.key : undefined;
  change();
  focusLike(key);
}

/// Gives the focus to the button with this key, if there is one.
export function focusLike(key) {
  if (key !== undefined) document.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
}

/// A time of the API as people read it: to the millisecond, in UTC, as in the server's log.
export function timeText(at) {
  return at.replace("T", " ").replace(/Z$/, "").replace(/(\.\d{3})\d*$/, "$1");
}

/// A duration, in the largest unit that leaves a digit before the point.
export function durationText(seconds) {
  if (!Number.isFinite(seconds)) return "—";
  if (seconds < 1e-3) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toFixed(seconds < 0.01 ? 2 : 0)} ms`;
  if (seconds < 120) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 7200) return `${(seconds / 60).toFixed(0)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

/// A count or a rate, with a space between thousands.
export function numberText(number) {
  if (!Number.isFinite(number)) return "—";
  const digits = number !== 0 && Math.abs(number) < 100 && !Number.isInteger(number) ? 1 : 0;
  return number.toFixed(digits).replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");
}

/// Bytes, in binary units.
export function bytesText(bytes) {
  if (!Number.isFinite(bytes)) return "—";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = Math.min(units.length - 1, bytes < 1 ? 0 : Math.floor(Math.log2(bytes) / 10));
  return `${numberText(bytes / 1024 ** power)} ${units[power]}`;
}
