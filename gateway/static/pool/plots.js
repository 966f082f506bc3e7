// Plots of the last ten minutes.

import uPlot from '../vendor/uplot/uPlot.mjs';
import { theme } from '../shared/stored.js';
import { effect, html, signal, useEffect, useRef } from '../index.js';
import { samples } from './feed.js';
import { count, percent, rate, seconds, timeOf } from './words.js';

const HEIGHT = 132;
const SPAN_S = 600;

// `least` is the top of an axis whose values are all small; a line shows a column of the samples.
const PLOTS = [
  {
    title: 'Tokens a second',
    least: 10,
    write: rate,
    lines: [
      { column: 1, name: 'written', colour: '--accent' },
      { column: 2, name: 'prompt, computed', colour: '--good', dash: [4, 3] },
    ],
  },
  {
    title: 'Time to the first token',
    least: 0.1,
    write: seconds,
    lines: [
      { column: 4, name: 'median', colour: '--accent' },
      { column: 5, name: 'p95', colour: '--warn', dash: [4, 3] },
    ],
  },
  {
    title: 'Tasks',
    least: 4,
    write: count,
    lines: [
      { column: 6, name: 'in slots', colour: '--accent', isFilled: true },
      { column: 8, name: 'waiting', colour: '--bad', dash: [4, 3] },
    ],
  },
  {
    title: 'Prompt tokens from a cache',
    least: 1,
    write: percent,
    isShare: true,
    lines: [{ column: 3, name: 'share', colour: '--good', isFilled: true }],
  },
];

// Index of the sample under the pointer, in all plots; null is the newest.
const pointed = signal(null);

const systemTheme = matchMedia('(prefers-color-scheme: dark)');
const isDark = signal(systemTheme.matches);
systemTheme.addEventListener('change', () => {
  isDark.value = systemTheme.matches;
});

function options(plot, width, colours) {
  const axis = {
    stroke: colours('--muted'),
    font: '11px system-ui, sans-serif',
    grid: { stroke: colours('--line'), width: 1 },
    ticks: { show: false },
  };
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    padding: [8, 16, 0, 0], // half of the last time stands to the right
    cursor: { y: false, drag: { x: false, y: false }, sync: { key: 'pool' }, points: { size: 6 } },
    scales: {
      x: { time: true, range: (_, low, high) => [high - SPAN_S, high] },
      y: { range: (_, low, high) => [0, plot.isShare ? 1 : Math.max(high * 1.1, plot.least)] },
    },
    axes: [
      { ...axis, size: 22, space: 90, values: (_, at) => at.map((s) => timeOf(s).slice(0, 5)) },
      { ...axis, size: 52, space: 34, gap: 4, values: (_, at) => at.map((v) => plot.write(v)) },
    ],
    series: [
      {},
      ...plot.lines.map(({ colour, dash, isFilled }) => ({
        stroke: colours(colour),
        width: 1.5,
        dash,
        fill: isFilled ? `color-mix(in srgb, ${colours(colour)} 15%, transparent)` : undefined,
        points: { show: false },
        spanGaps: false,
      })),
    ],
    hooks: {
      setCursor: [
        ({ cursor }) => {
          pointed.value = cursor.left < 0 ? null : (cursor.idx ?? null);
        },
      ],
    },
  };
}

// Colours are written out: a canvas knows no `light-dark()`.
function coloursOf(element) {
  const probe = document.createElement('i');
  element.append(probe);
  const style = getComputedStyle(probe);
  const found = Object.fromEntries(
    ['--accent', '--good', '--warn', '--bad', '--muted', '--line'].map((name) => {
      probe.style.color = `var(${name})`;
      return [name, style.color];
    }),
  );
  probe.remove();
  return (name) => found[name];
}

const dataOf = (plot, rows) => [
  rows.map(([second]) => second),
  ...plot.lines.map(({ column }) => rows.map((one) => one[column])),
];

function draw(element, plot) {
  let chart = null;
  const show = () => {
    chart?.destroy();
    chart = new uPlot(
      options(plot, element.clientWidth, coloursOf(element)),
      dataOf(plot, samples.peek()),
      element,
    );
  };
  const endColours = effect(() => {
    theme.value;
    isDark.value;
    // The attribute that the theme sets is there after this turn.
    queueMicrotask(() => element.isConnected && show());
  });
  const endData = effect(() => {
    const rows = samples.value;
    chart?.setData(dataOf(plot, rows));
  });
  const sizes = new ResizeObserver(() => {
    if (chart && chart.width !== element.clientWidth && element.clientWidth) {
      chart.setSize({ width: element.clientWidth, height: HEIGHT });
    }
  });
  sizes.observe(element);
  return () => {
    endColours();
    endData();
    sizes.disconnect();
    chart?.destroy();
    pointed.value = null;
  };
}

function Values({ plot }) {
  const rows = samples.value;
  const at = pointed.value === null ? rows.at(-1) : rows[pointed.value];
  return html`<span class="values">
    ${pointed.value !== null && at && html`<time>${timeOf(at[0])}</time>`}
    ${plot.lines.map(
      ({ column, name, colour, dash }) => html`<span>
        <i class=${`key ${dash ? 'dashed' : ''}`} style=${{ '--colour': `var(${colour})` }} aria-hidden="true"></i>
        ${name} <b>${plot.write(at?.[column])}</b>
      </span>`,
    )}
  </span>`;
}

function Plot({ plot }) {
  const own = useRef(null);
  useEffect(() => draw(own.current, plot), []);
  return html`<figure class="plot">
    <figcaption><strong>${plot.title}</strong> <${Values} plot=${plot} /></figcaption>
    <div ref=${own} aria-hidden="true"></div>
  </figure>`;
}

export function Plots() {
  return html`<section class="plots" aria-label="The last ten minutes">
    ${PLOTS.map((plot) => html`<${Plot} key=${plot.title} plot=${plot} />`)}
  </section>`;
}
