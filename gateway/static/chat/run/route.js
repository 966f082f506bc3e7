// Which worker an answer comes from, why, and how long it was in the queue, as the server tells it: in
// the head of the response if it knew then, and in a comment of the stream if not, or once another
// worker goes on.

const COMMENT = /^worker queue_ms=(\d+) cached=(\d+) route=(\S*) name=(.+)$/;

// Returns what the head of a response tells; nothing is in it if no worker was chosen yet.
export function routeOfHead(headers) {
  const worker = headers.get('x-llamapool-worker');
  if (!worker) return {};
  const [queueMs, nCached] = ['queue-ms', 'cached'].map((name) => headers.get(`x-llamapool-${name}`));
  return {
    worker,
    route: headers.get('x-llamapool-route') ?? '',
    queueMs: queueMs === null ? null : Number(queueMs),
    nCached: nCached === null ? null : Number(nCached),
  };
}

// Returns what a comment tells, or null if it tells something else.
export function routeOfComment(comment) {
  const found = COMMENT.exec(comment);
  if (!found) return null;
  const [, queueMs, nCached, route, worker] = found;
  return { worker, route, queueMs: Number(queueMs), nCached: Number(nCached) };
}
