// Requests of the page to this listener's routes, with the operator's token.

/// Time limit of a read, ms. Data that is older must not look current.
const LOOK_MS = 10_000;
/// Time limit of a change and of a full check, ms: longer than the server's own limit.
export const LONG_MS = 130_000;

/// The token, in memory only. A browser's storage may outlive the session on a disk.
let token = null;

/// An answer that is not a success.
export class Refused extends Error {
  constructor(status, body) {
    super(typeof body?.message === "string" ? body.message : `The server answered ${status}.`);
    this.status = status;
    this.code = body?.code ?? null;
    this.requestId = body?.request_id ?? null;
    /// Of a change: true if its outcome is unknown, for example after a lost connection.
    this.unknown = body?.outcome === "unknown" || status >= 500;
  }
}

/// No readable answer came. The outcome of a change is then unknown.
export class Silent extends Error {}

export function useToken(text) {
  token = text;
}

/// The JSON that a route answers. Numbers that JavaScript would round, such as a long user's, are text.
export function get(path, patienceMs = LOOK_MS) {
  return ask("GET", path, undefined, patienceMs);
}

/// Calls a route that changes something. If two operators are needed, the answer is an approval that is `PENDING_APPROVAL`.
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
