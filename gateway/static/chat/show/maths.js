// Formulas as MathML, which browsers draw themselves and screen readers read.

const MAX_CHARS = 5_000;
const OPTIONS = { output: 'mathml', throwOnError: true, strict: 'ignore', trust: false, maxExpand: 500, maxSize: 20 };

let loading = null;

async function load() {
  await import('../../vendor/markdown/katex.js');
  return globalThis.katex;
}

// A formula that is not whole or that KaTeX does not know stays as it is written.
export function dressMaths(fragment, isWhole) {
  const found = [...fragment.querySelectorAll('.maths')];
  if (!found.length || !isWhole) return;
  loading ??= load();
  loading.then(
    (katex) => found.forEach((one) => draw(katex, one)),
    () => {
      loading = null; // the next formula asks again
    },
  );
}

function draw(katex, element) {
  const source = element.textContent;
  if (source.length > MAX_CHARS) return;
  const made = document.createElement('span');
  try {
    katex.render(source, made, { ...OPTIONS, displayMode: element.classList.contains('block') });
  } catch {
    element.classList.add('unknown');
    return;
  }
  element.replaceChildren(...made.childNodes);
}
