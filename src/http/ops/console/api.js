// What the page asks this listener's routes, by the operator's token.

/// How long a look may take before it is given up, ms: what is shown must not look alive for longer.
const LOOK_MS = 10_000;
/// The same of what changes something, and of a check of everything: longer than the server itself takes to give up on one.
export const LONG_MS = 130_000;

/// The token, in memory only. What a browser stores may outlive the session on a disk.
let token = null;

/// An answer that is not a success.
export class Refused extends Error {
  constructor(status, body) {
    super(typeof body?.message === "string" ? body.message : `The server answered ${status}.`);
    this.status = status;
    this.code = body?.code ?? null;
    this.requestId = body?.request_id ?? null;
    /// Of a change: whether it may have been made all the same. A part that went away in the middle leaves that open.
    this.unknown = body?.outcome === "unknown" || status >= 500;
  }
}

/// No answer came, or none that can be read. Of a change, it is not known whether it was made.
export class Silent extends Error {}

export function useToken(text) {
  token = text;
}

/// The JSON that a route answers. Numbers that JavaScript would round, such as a long user's, are text.
export function get(path, patienceMs = LOOK_MS) {
  return ask("GET", path, undefined, patienceMs);
}

/// Has a route change something. Where two operators are needed, the answer is an approval that is `PENDING_APPROVAL`.
export function change(method, path, body) {
  return ask(method, path, body, LONG_MS);
}

/// The metrics' text, and the server's time when it wrote them, ms since the Unix epoch: this machine's clock may be wrong.
export async function metrics() {
  const response = await send("GET", "metrics", undefined, LOOK_MS);
  if (!response.ok) throw new Refused(response.status, null);
  return [await read(() => response.text()), Date.parse(response.headers.get("Date"))];
}

async function ask(method, path, body, patienceMs) {
  const response = await send(method, `admin/v1/${path}`, body, patienceMs);
  const answer = await read(async () => JSON.parse(await response.text(), exactly));
  if (!response.ok) throw new Refused(response.status, answer);
  return answer;
}

/// A whole number that is too long for JavaScript, as the text that the server wrote.
function exactly(_, value, context) {
  return typeof value === "number" && !Number.isSafeInteger(value) && Number.isInteger(value) ? context.source : value;
}

async function send(method, path, body, patienceMs) {
  const headers = {};
  if (token !== null) headers.Authorization = `Bearer ${token}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const options = { method, headers, cache: "no-store", credentials: "omit", redirect: "error" };
  if (body !== undefined) options.body = JSON.stringify(body);
  return read(() => fetch(path, { ...options, signal: AbortSignal.timeout(patienceMs) }));
}

async function read(attempt) {
  try {
    return await attempt();
  } catch (error) {
    throw new Silent("The server does not answer.", { cause: error });
  }
}
