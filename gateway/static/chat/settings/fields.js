// The sampling fields of `/props`, with names and steps for those that people change.

const KNOWN = {
  temperature: ['Temperature', 'Higher is more varied, 0 always takes the likeliest token.', 0.1, 0],
  top_k: ['Top K', 'Choose among so many of the likeliest tokens; 0: among all.', 1, 0],
  top_p: ['Top P', 'Choose among the likeliest tokens that together have this probability.', 0.05, 0, 1],
  min_p: ['Min P', 'Leave out tokens less likely than this part of the likeliest.', 0.01, 0, 1],
  max_tokens: ['Longest answer', 'In tokens; -1: as long as it takes.', 1, -1],
  seed: ['Seed', 'The same seed gives the same answer; without one, each answer differs.', 1, 0],
  repeat_penalty: ['Repeat penalty', '1 is none.', 0.05, 0],
  repeat_last_n: ['Repeat range', 'Tokens that the repeat penalty looks back.', 1, -1],
  presence_penalty: ['Presence penalty', '0 is none.', 0.1, -2, 2],
  frequency_penalty: ['Frequency penalty', '0 is none.', 0.1, -2, 2],
  dynatemp_range: ['Dynamic temperature', 'Range around the temperature; 0: off.', 0.1, 0],
  xtc_probability: ['XTC probability', 'Chance of leaving out the likeliest tokens.', 0.05, 0, 1],
  xtc_threshold: ['XTC threshold', 'Tokens less likely than this stay.', 0.05, 0, 1],
  typical_p: ['Typical P', '1 is off.', 0.05, 0, 1],
  dry_multiplier: ['DRY multiplier', 'Penalty on repeated sequences; 0: off.', 0.1, 0],
  mirostat: ['Mirostat', '0: off, 1 or 2: its version.', 1, 0, 2],
};
const FIRST = ['temperature', 'top_k', 'top_p', 'min_p', 'max_tokens', 'seed'];

// These follow from the chat itself, or are the same as others.
const HIDDEN = new Set([
  'backend_sampling', 'chat_format', 'generation_prompt', 'id_slot', 'n', 'n_predict', 'n_probs', 'post_sampling_probs',
  'reasoning_in_content', 'samplers', 'speculative.types', 'stream', 'timings_per_token',
]);

// What a number of the server means, where it is no amount.
const WORDS = { max_tokens: { '-1': 'no limit' }, seed: { 4294967295: 'random' } };

// 0.8 comes as 0.800000011920929.
const rounded = (value) => (Number.isInteger(value) ? value : Number(value.toPrecision(6)));

// Returns the fields of a model, those that are changed most first.
export function fieldsOf(props) {
  const params = props?.default_generation_settings?.params ?? {};
  const order = (name) => {
    const places = [FIRST.indexOf(name), Object.keys(KNOWN).indexOf(name)];
    return places[0] >= 0 ? places[0] : places[1] >= 0 ? 100 + places[1] : 1000;
  };
  return Object.entries(params)
    .filter(([name, value]) => !HIDDEN.has(name) && ['number', 'boolean', 'string'].includes(typeof value))
    .sort(([a], [b]) => order(a) - order(b))
    .map(([name, value]) => {
      const [label = name, help = '', step = 'any', min, max] = KNOWN[name] ?? [];
      const usual = typeof value === 'number' ? rounded(value) : value;
      const said = WORDS[name]?.[usual] ?? String(usual);
      return { name, label, help, step, min, max, usual, said, isFirst: FIRST.includes(name) };
    });
}

// Returns the value of a field's text, or undefined if it is the usual one.
export function valueOf(field, text) {
  if (text === '' || text === undefined) return undefined;
  const value = typeof field.usual === 'number' ? Number(text) : text;
  return value === field.usual ? undefined : value;
}
