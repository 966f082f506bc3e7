// Numbers, times and states in words.

const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat('en', { maximumFractionDigits: 1 });
const clock = new Intl.DateTimeFormat('en', {
  hour: '2-digit',
  minute: '2-digit',
  second: '2-digit',
  hour12: false,
});

export const NOTHING = '–';

export const count = (n) => (n === null || n === undefined ? NOTHING : whole.format(n));
export const rate = (n) => {
  if (n === null || n === undefined) return NOTHING;
  return n < 100 ? tenth.format(n) : whole.format(n);
};
export const percent = (share) =>
  share === null || share === undefined ? NOTHING : `${Math.round(100 * share)} %`;
export const timeOf = (seconds) => clock.format(new Date(1000 * seconds));
export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

export function seconds(s) {
  if (s === null || s === undefined) return NOTHING;
  if (s < 1) return `${Math.round(1000 * s)} ms`;
  return s < 100 ? `${tenth.format(s)} s` : `${whole.format(s)} s`;
}

export const SLOTS = {
  '.': 'idle',
  r: 'reads a prompt',
  w: 'writes an answer',
  e: 'ends a task that was given up',
  b: 'busy',
};

export const EVENTS = {
  ready: 'is ready',
  lost: 'is lost',
  left: 'has left',
  draining: 'drains',
  ejected: 'fails or is slow: it gets one task at a time',
  'let in': 'does well again',
  asleep: 'sleeps: its model is unloaded until the next request',
  awake: 'is awake',
  refused: 'request refused from now on',
  died: 'has died',
  quarantined: 'died too often and is kept stopped',
  'given up': 'is not started again',
  drained: 'is drained',
  rollout: 'rolling change',
};

// Which events are bad news, and which a matter of course.
export const GRAVE = new Set(['lost', 'died', 'ejected', 'refused', 'quarantined', 'given up']);

export const ROUTES = {
  prefix: 'has the beginning of its prompt in the cache',
  session: 'had its session last',
  spread: 'the workers with its prompt were too busy',
  load: 'the fastest by load',
  pinned: 'the request names a slot',
};

export function eventText({ kind, name, model, why, n_tasks: nTasks }) {
  const subject = kind === 'refused' || kind === 'rollout' ? '' : `${name} `;
  const tasks = nTasks ? `; ${plural(nTasks, 'task')} went on elsewhere` : '';
  const rest = kind === 'rollout' && name ? `, ${name}` : '';
  const about = kind === 'ready' && model ? ` for ${model}` : '';
  return `${subject}${EVENTS[kind] ?? kind}${about}${why ? `: ${why.replace(/^said bye: /, '')}` : ''}${rest}${tasks}`;
}
