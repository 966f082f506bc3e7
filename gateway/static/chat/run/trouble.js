// What went wrong, in words for people who have never seen the API.

const WORDS = {
  0: 'The connection failed.',
  400: 'The server does not accept this request.',
  401: 'This server wants an API key.',
  403: 'This key may not do that.',
  404: 'The server does not know this model.',
  413: 'This is too much for the server.',
  422: 'The server refuses this request.',
  429: 'Too many people are asking at the moment.',
  500: 'The server failed.',
  501: 'This server cannot do that.',
  503: 'No model is ready at the moment.',
  504: 'The server had no time for this.',
};

// Returns a sentence for everybody, and the server's own words if they say more.
export function inWords({ status, type, message }) {
  const known = type === 'exceed_context_size_error' ? 'This chat is too long for the model.' : WORDS[status];
  const summary = known ?? 'Something went wrong.';
  return { summary, detail: message && message !== summary ? message : '' };
}

export const secondsUntil = (time) => Math.max(0, Math.ceil((time - Date.now()) / 1000));
