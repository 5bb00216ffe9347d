// What the page asks this listener's routes, by the operator's token.

/// How long an answer may take before it is given up, ms: longer than the server itself takes to give up on one.
const PATIENCE_MS = 40_000;

/// The token, in memory only. What a browser stores may outlive the session on a disk.
let token = null;

/// An answer that is not a success.
export class Refused extends Error {
  constructor(status, body) {
    super(typeof body?.message === "string" ? body.message : `The server answered ${status}.`);
    this.status = status;
    this.code = body?.code ?? null;
    this.requestId = body?.request_id ?? null;
  }
}

/// No answer came, or none that can be read. Of a change, it is not known whether it was made.
export class Silent extends Error {}

export function useToken(text) {
  token = text;
}

/// The JSON that a route answers.
export function get(path) {
  return ask("GET", path);
}

/// Has a route change something. Where two operators are needed, the answer is an approval that is `PENDING_APPROVAL`.
export function change(method, path, body) {
  return ask(method, path, body);
}

/// The metrics' text, and the server's time when it wrote them, ms since the Unix epoch: this machine's clock may be wrong.
export async function metrics() {
  const response = await send("GET", "metrics");
  if (!response.ok) throw new Refused(response.status, null);
  return [await read(() => response.text()), Date.parse(response.headers.get("Date"))];
}

async function ask(method, path, body) {
  const response = await send(method, `admin/v1/${path}`, body);
  const answer = await read(() => response.json());
  if (!response.ok) throw new Refused(response.status, answer);
  return answer;
}

async function send(method, path, body) {
  const headers = {};
  if (token !== null) headers.Authorization = `Bearer ${token}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const options = { method, headers, cache: "no-store", credentials: "omit", redirect: "error" };
  if (body !== undefined) options.body = JSON.stringify(body);
  return read(() => fetch(path, { ...options, signal: AbortSignal.timeout(PATIENCE_MS) }));
}

async function read(attempt) {
  try {
    return await attempt();
  } catch (error) {
    throw new Silent("The server does not answer.", { cause: error });
  }
}
