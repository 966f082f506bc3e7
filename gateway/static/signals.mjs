// Values that tell who reads them when they change.

let reader = null; // the effect that runs now
let depth = 0; // of batches
const pending = new Set();

export class Signal {
  constructor(value) {
    this._value = value;
    this._readers = new Set();
  }

  get value() {
    if (reader) {
      this._readers.add(reader);
      reader.sources.add(this);
    }
    return this._value;
  }

  set value(value) {
    if (Object.is(value, this._value)) return;
    this._value = value;
    batch(() => this._readers.forEach((one) => pending.add(one)));
  }

  // Returns the value without becoming a reader of it.
  peek() {
    return this._value;
  }

  // Calls with the value now and whenever it changes; returns what ends that.
  subscribe(call) {
    return effect(() => call(this.value));
  }

  toString() {
    return String(this.value);
  }

  toJSON() {
    return this.value;
  }

  valueOf() {
    return this.value;
  }
}

export const signal = (value) => new Signal(value);

// Runs `work`, and again when a signal that it has read changes; returns what ends that. What the
// work returns, if it is a function, is called before the next run and at the end.
export function effect(work) {
  let cleanup = null;
  const stop = watch(
    () => {
      cleanup?.();
      const returned = work();
      cleanup = typeof returned === 'function' ? returned : null;
    },
    (run) => run(),
  );
  return () => {
    stop();
    cleanup?.();
    cleanup = null;
  };
}

// Runs `work` at once, and lets `later` decide when it runs again after a change.
export function watch(work, later) {
  const own = { sources: new Set(), notify: () => later(run) };
  let isOver = false;
  const forget = () => {
    own.sources.forEach((source) => source._readers.delete(own));
    own.sources.clear();
  };
  const run = () => {
    if (isOver) return;
    forget();
    const outer = reader;
    reader = own;
    try {
      work();
    } finally {
      reader = outer;
    }
  };
  run();
  return () => {
    isOver = true;
    forget();
  };
}

// Returns a signal that follows from others.
export function computed(work) {
  const found = new Signal(undefined);
  effect(() => {
    found.value = work();
  });
  return found;
}

// Holds back what signals tell until `work` is over.
export function batch(work) {
  depth++;
  try {
    return work();
  } finally {
    if (depth === 1) settle();
    depth--;
  }
}

function settle() {
  for (let rounds = 0; pending.size; rounds++) {
    if (rounds > 100) {
      pending.clear();
      throw new Error('signals change each other without end');
    }
    const now = [...pending];
    pending.clear();
    now.forEach((one) => one.notify());
  }
}

// Runs `work` without becoming a reader of anything.
export function untracked(work) {
  const outer = reader;
  reader = null;
  try {
    return work();
  } finally {
    reader = outer;
  }
}
