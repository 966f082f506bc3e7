// Drives the modules of the built-in page in a document of a few lines, and prints what it shows.

class Text {
  constructor(data) {
    this.data = String(data);
  }
  get outer() {
    return this.data;
  }
}

class Element {
  constructor(name) {
    Object.assign(this, { name, childNodes: [], attributes: {}, listeners: {}, style: {} });
  }
  insertBefore(node, next) {
    node.parentNode?.removeChild(node);
    const at = next ? this.childNodes.indexOf(next) : this.childNodes.length;
    if (at < 0) throw new Error('not a child');
    this.childNodes.splice(at, 0, node);
    node.parentNode = this;
    Element.n_moves++;
  }
  removeChild(node) {
    const at = this.childNodes.indexOf(node);
    if (at < 0) throw new Error('not a child');
    this.childNodes.splice(at, 1);
    node.parentNode = null;
  }
  setAttribute(name, value) {
    this.attributes[name] = String(value);
  }
  removeAttribute(name) {
    delete this.attributes[name];
  }
  addEventListener(kind, call) {
    this.listeners[kind] = call;
  }
  removeEventListener(kind) {
    delete this.listeners[kind];
  }
  get inner() {
    return this.childNodes.map((one) => one.outer).join('');
  }
  get outer() {
    const written = Object.entries(this.attributes).map(([name, value]) => ` ${name}="${value}"`);
    return `<${this.name}${written.join('')}>${this.inner}</${this.name}>`;
  }
}
for (const kind of [Text, Element]) {
  Object.defineProperty(kind.prototype, 'nextSibling', {
    get() {
      const all = this.parentNode.childNodes;
      return all[all.indexOf(this) + 1] ?? null;
    },
  });
}
globalThis.document = {
  createElement: (name) => new Element(name),
  createTextNode: (data) => new Text(data),
};

const page = await import(process.argv[2]);
const { html, h, signal, computed, effect, batch, render, Component, Fragment } = page;
const { useSignal, useEffect, useRef, useState, useMemo } = page;
const told = {};
const settled = () => new Promise((done) => setTimeout(done));

// Signals.
const [a, b] = [signal(1), signal(2)];
const sum = computed(() => a.value + b.value);
const sums = [];
const stop = effect(() => {
  sums.push(sum.value);
});
batch(() => {
  a.value = 10;
  b.value = 20;
});
a.value = 10;
stop();
a.value = 0;
told.signals = [sums, sum.value, `${a}`, a.peek()];

// A page that grows, moves its parts, and takes clicks.
const log = [];
const items = signal(['x', 'y', 'z']);
const Item = ({ name }) => {
  const clicks = useSignal(0);
  useEffect(() => {
    log.push(`+${name}`);
    return () => log.push(`-${name}`);
  }, []);
  return html`<li onclick=${() => clicks.value++}>${name}:${clicks}</li>`;
};
const List = () => html`
  <ul class="a ${items.value.length}" hidden=${false}>
    ${items.value.map((name) => h(Item, { key: name, name }))}
  </ul>
  ${items.value.length > 3 && html`<p>many<br />of them</p>`}
`;
const body = new Element('body');
render(html`<${List} />`, body);
await settled();
told.first = body.inner;
body.childNodes[0].childNodes[1].listeners.click();
await settled();
told.clicked = body.inner;
const kept = body.childNodes[0].childNodes[1];
Element.n_moves = 0;
items.value = ['z', 'y', 'w', 'v'];
await settled();
told.changed = body.inner;
told.kept = body.childNodes[0].childNodes[1] === kept;
items.value = [];
await settled();
told.emptied = body.inner;
told.log = log;

// Hooks, classes, references, attributes that follow signals.
const on = signal(true);
class Counter extends Component {
  constructor(props) {
    super(props);
    this.state = { n: 0 };
  }
  componentDidMount() {
    this.setState({ n: this.props.start });
  }
  render({ children }, { n }) {
    return html`<b style=${{ fontSize: '2em' }}>${n}${children}</b>`;
  }
}
const Field = () => {
  const [text, setText] = useState('hi');
  const field = useRef(null);
  const size = useMemo(() => text.length, [text]);
  const more = { title: 'T', ...(on.value ? { checked: true } : {}) };
  return html`<${Fragment}>
    <input ref=${field} value=${text} disabled=${on} ...${more}
      oninput=${() => setText(field.current.value)}/>
    <!-- not shown -->
    ${on.value ? html`<i>${size}</i>` : null}
    <${Counter} start=${5}>!<//>
  <//>`;
};
const other = new Element('body');
render(h(Field), other);
await settled();
const input = other.childNodes[0];
told.fields = [other.inner, input.value, other.childNodes[2].style.cssText];
input.value = 'hello';
input.listeners.input();
on.value = false;
await settled();
told.later = other.inner;
render('plain', other);
told.plain = other.inner;
told.unclosed = '';
try {
  html`<p>`;
} catch (error) {
  told.unclosed = error.message;
}
console.log(JSON.stringify(told));
