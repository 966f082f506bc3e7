// Elements and components: what is shown follows from what is described, with as few changes to the
// document as that needs.

import { Signal, computed, effect, signal, untracked, watch } from './signals.mjs';

let current = null; // the component that is being rendered
let place = 0; // of its next hook

export const Fragment = ({ children }) => children;

// Describes an element or a component.
export function h(type, props, ...children) {
  const { key = null, ref = null, ...rest } = props ?? {};
  if (typeof type === 'string') {
    // Read here, where the component is that must be shown again when they change.
    for (const [name, value] of Object.entries(rest)) {
      if (value instanceof Signal) rest[name] = value.value;
    }
  }
  if (children.length) rest.children = children;
  return { type, key, ref, props: rest };
}

export const createRef = () => ({ current: null });

// Shows a description inside an element, in the place of what it has shown there before.
export function render(described, parent) {
  const before = parent.__shown ?? [];
  parent.__shown = reconcile(parent, before, listed(described), null);
}

export class Component {
  constructor(props) {
    this.props = props;
    this.state = {};
  }

  setState(change, then) {
    const added = typeof change === 'function' ? change(this.state, this.props) : change;
    this.state = { ...this.state, ...added };
    this.__update?.(then);
  }

  forceUpdate(then) {
    this.__update?.(then);
  }

  render() {}
}

// ---- what is described, and what is shown --------------------------------------------------------

function listed(children) {
  if (Array.isArray(children)) return children.flatMap(listed);
  if (children === null || children === undefined || typeof children === 'boolean') return [];
  if (children instanceof Signal) return [h(SignalText, { signal: children })];
  if (typeof children === 'object') return [children];
  return [text(String(children))];
}

const text = (words) => ({ type: null, key: null, ref: null, props: { text: words } });

const SignalText = ({ signal: shown }) => shown.value;

const nameOf = (described, i) => (described.key === null ? `#${i}` : `=${described.key}`);

// Makes of the nodes in `old` those of `described`, in front of `end`; returns them.
function reconcile(parent, old, described, end) {
  const free = new Map(old.map((one, i) => [nameOf(one.described, i), one]));
  const matched = described.map((one, i) => {
    const found = free.get(nameOf(one, i));
    if (found?.described.type !== one.type) return null;
    free.delete(nameOf(one, i));
    return found;
  });
  free.forEach((one) => remove(one, parent));
  const shown = described.map((one, i) => matched[i] ?? create(one));
  let next = end;
  for (let i = shown.length - 1; i >= 0; i--) {
    if (matched[i]) update(shown[i], described[i], parent);
    next = put(shown[i], parent, next);
  }
  return shown;
}

function create(described) {
  const node = { described, dom: null, children: [], component: null };
  if (described.type === null) {
    node.dom = document.createTextNode(described.props.text);
  } else if (typeof described.type === 'function') {
    node.component = mounted(node);
  } else {
    node.dom = document.createElement(described.type);
    decorate(node.dom, {}, described.props);
    node.children = reconcile(node.dom, [], listed(described.props.children), null);
    tell(described.ref, node.dom);
  }
  return node;
}

function update(node, described, parent) {
  const before = node.described;
  node.described = described;
  if (described.type === null) {
    if (before.props.text !== described.props.text) node.dom.data = described.props.text;
  } else if (node.component) {
    node.component.parent = parent;
    node.component.run();
  } else {
    decorate(node.dom, before.props, described.props);
    node.children = reconcile(node.dom, node.children, listed(described.props.children), null);
    if (before.ref !== described.ref) tell(described.ref, node.dom);
  }
}

// Puts what a node shows in front of `next`; returns the first of it.
function put(node, parent, next) {
  if (node.component) {
    node.component.parent = parent;
    return node.children.reduceRight((behind, child) => put(child, parent, behind), next);
  }
  if (node.dom.parentNode !== parent || node.dom.nextSibling !== next) {
    parent.insertBefore(node.dom, next);
  }
  return node.dom;
}

function remove(node, parent) {
  node.component?.end();
  tell(node.described.ref, null);
  node.children.forEach((child) => remove(child, node.component ? parent : null));
  if (node.dom && parent) parent.removeChild(node.dom);
}

function tell(ref, value) {
  if (typeof ref === 'function') ref(value);
  else if (ref) ref.current = value;
}

const lastOf = (node) => node.dom ?? lastOf(node.children[node.children.length - 1]);

// ---- components ----------------------------------------------------------------------------------

function mounted(node) {
  const own = { hooks: [], parent: null, isOver: false, instance: null, afterwards: [] };
  let isPlanned = false;
  const show = () => {
    const end = own.parent ? lastOf(node).nextSibling : null;
    const described = listed(called(node, own));
    if (!described.length) described.push(text('')); // it keeps the place
    // Children read signals of their own, and make nobody else a reader.
    untracked(() => {
      node.children = own.parent
        ? reconcile(own.parent, node.children, described, end)
        : described.map(create);
    });
    plan(() => own.hooks.forEach((hook) => hook.settle?.()));
    own.afterwards.splice(0).forEach((then) => plan(then));
  };
  own.update = () => {
    if (isPlanned) return;
    isPlanned = true;
    plan(() => {
      isPlanned = false;
      if (!own.isOver) own.run();
    });
  };
  own.run = () => {
    own.stop?.();
    own.stop = watch(show, own.update);
  };
  own.end = () => {
    own.isOver = true;
    own.stop();
    own.hooks.forEach((hook) => hook.end?.());
    own.instance?.componentWillUnmount?.();
  };
  own.run();
  return own;
}

const plan = (work) => queueMicrotask(work);

function called(node, own) {
  const { type, props } = node.described;
  const outer = [current, place];
  [current, place] = [own, 0];
  try {
    if (!(type.prototype instanceof Component)) return type(props);
    if (!own.instance) {
      own.instance = new type(props);
      own.instance.__update = (then) => {
        if (then) own.afterwards.push(then);
        own.update();
      };
      plan(() => own.isOver || own.instance.componentDidMount?.());
    } else {
      plan(() => own.isOver || own.instance.componentDidUpdate?.());
    }
    own.instance.props = props;
    return own.instance.render(props, own.instance.state);
  } finally {
    [current, place] = outer;
  }
}

// ---- hooks ---------------------------------------------------------------------------------------

function hook(make) {
  if (!current) throw new Error('a hook is called outside a component');
  const { hooks } = current;
  if (place === hooks.length) hooks.push(make(current));
  return hooks[place++];
}

const differs = (a, b) =>
  !a || !b || a.length !== b.length || a.some((one, i) => !Object.is(one, b[i]));

export const useRef = (value) => hook(() => ({ current: value }));
export const useSignal = (value) => hook(() => ({ signal: signal(value) })).signal;
export const useComputed = (work) => hook(() => ({ signal: computed(work) })).signal;
export const useSignalEffect = (work) => {
  hook(() => ({ end: effect(work) }));
};

const chosen = (state, next) => (typeof next === 'function' ? next(state) : next);

export const useState = (initial) => useReducer(chosen, initial);

export function useReducer(reduce, initial) {
  const own = hook((component) => {
    const made = { value: typeof initial === 'function' ? initial() : initial };
    made.set = (action) => {
      const value = reduce(made.value, action);
      if (Object.is(value, made.value)) return;
      made.value = value;
      component.update();
    };
    return made;
  });
  return [own.value, own.set];
}

export function useMemo(make, inputs) {
  const own = hook(() => ({}));
  if (differs(own.inputs, inputs)) Object.assign(own, { value: make(), inputs });
  return own.value;
}

export const useCallback = (call, inputs) => useMemo(() => call, inputs);

export function useEffect(work, inputs) {
  const own = hook(() => ({ end: () => own.cleanup?.() }));
  if (!differs(own.inputs, inputs)) return;
  own.inputs = inputs;
  own.settle = () => {
    own.settle = null;
    own.cleanup?.();
    const returned = work();
    own.cleanup = typeof returned === 'function' ? returned : null;
  };
}

export const useLayoutEffect = useEffect;

// ---- attributes ----------------------------------------------------------------------------------

function decorate(dom, before, after) {
  for (const name of new Set([...Object.keys(before), ...Object.keys(after)])) {
    if (name === 'children') continue;
    const value = after[name];
    if (name === 'value' || name === 'checked') {
      if (dom[name] !== value) dom[name] = value ?? ''; // the user may have changed it since
    } else if (before[name] !== value) {
      set(dom, name, before[name], value);
    }
  }
}

function set(dom, name, old, value) {
  if (name.startsWith('on')) {
    const kind = name.slice(2).toLowerCase();
    if (old) dom.removeEventListener(kind, old);
    if (value) dom.addEventListener(kind, value);
  } else if (name === 'style' && value && typeof value === 'object') {
    const written = Object.entries(value).map(([key, one]) => `${css(key)}: ${one}`);
    dom.style.cssText = written.join('; ');
  } else if (name === 'dangerouslySetInnerHTML') {
    dom.innerHTML = value?.__html ?? '';
  } else if (value === null || value === undefined || value === false) {
    dom.removeAttribute(name === 'className' ? 'class' : name);
  } else {
    dom.setAttribute(name === 'className' ? 'class' : name, value === true ? '' : value);
  }
}

const css = (name) => name.replace(/[A-Z]/g, (one) => `-${one.toLowerCase()}`);
