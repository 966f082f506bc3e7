// Integers within bounds as a rule, digit by digit; the texts are those of the server's converter.

const MAX_DIGITS = 16;

// Returns what matches exactly the integers from `low` to `high` (BigInts); null is no bound.
export function integerRule(low, high) {
  if (low !== null && high !== null) return between(low, high);
  if (low !== null) return atLeast(low);
  if (high < 0n) return `"-" (${from(String(-high), MAX_DIGITS, high <= -10n ? 1 : 0)})`;
  return `"-" [1-9] ${digits(0, MAX_DIGITS - 1)} | ${between(0n, high)}`;
}

function between(low, high) {
  if (high < 0n) return `"-" (${between(-high, -low)})`;
  if (low < 0n) return `"-" (${between(0n, -low)}) | ${between(0n, high)}`;
  const parts = [];
  let first = String(low);
  for (let n = first.length; n < String(high).length; n++) {
    parts.push(uniform(first, '9'.repeat(n)));
    first = '1' + '0'.repeat(n);
  }
  return [...parts, uniform(first, String(high))].join(' | ');
}

function atLeast(low) {
  const any = `[0] | [1-9] ${digits(0, MAX_DIGITS - 1)}`;
  if (low < 0n) return `"-" (${between(0n, -low)}) | ${any}`;
  return low === 0n ? any : from(String(low), MAX_DIGITS, 1);
}

// As many digits as `low` has and not below it, or more; the first is at least `least`.
function from(low, left, least = 0) {
  if (/^0*$/.test(low)) return digits(low.length, left);
  const less = Math.max(left - 1, 1);
  const first = Number(low[0]);
  const parts = first > least ? [`${range(least, first - 1)} ${digits(low.length, less)}`] : [];
  if (low.length === 1) return [...parts, `${range(first, 9)} ${digits(0, less)}`].join(' | ');
  parts.push(`${range(first, first)} (${from(low.slice(1), less)})`);
  if (first < 9) parts.push(`${range(first + 1, 9)} ${digits(low.length - 1, less)}`);
  return parts.join(' | ');
}

// Numbers of equally many digits.
function uniform(low, high) {
  let same = 0;
  while (same < low.length && low[same] === high[same]) same++;
  const prefix = same ? `"${low.slice(0, same)}"` : '';
  if (same === low.length) return prefix;
  return `${prefix} ${differing(low.slice(same), high.slice(same))}`.trimStart();
}

// Numbers whose bounds differ in the first digit.
function differing(low, high) {
  const [first, last, n] = [Number(low[0]), Number(high[0]), low.length - 1];
  if (n === 0) return `[${first}-${last}]`;
  const [zeros, nines, rest] = ['0'.repeat(n), '9'.repeat(n), digits(n, n)];
  const parts = [];
  let reached = false;
  if (low.slice(1) === zeros) {
    parts.push(`${range(first, last - 1)} ${rest}`);
  } else {
    parts.push(`[${first}] (${uniform(low.slice(1), nines)})`);
    if (first < last - 1) {
      reached = high.slice(1) === nines;
      parts.push(`${range(first + 1, reached ? last : last - 1)} ${rest}`);
    }
  }
  if (!reached) parts.push(`${range(last, last)} ${uniform(zeros, high.slice(1))}`);
  return `(${parts.join(' | ')})`;
}

function range(low, high) {
  return low === high ? `[${low}]` : `[${low}-${high}]`;
}

function digits(least, most) {
  most = Math.max(least, most);
  if (least === 1 && most === 1) return '[0-9]';
  return least === most ? `[0-9]{${least}}` : `[0-9]{${least},${most}}`;
}
