// HTML to elements: DOMPurify leaves only what texts need.

import '../../vendor/markdown/purify.js';

const { DOMPurify } = globalThis;

const ALLOWED = {
  ALLOWED_TAGS: (
    'a b blockquote br code dd del div dl dt em h1 h2 h3 h4 h5 h6 hr i li ol p pre s span strong ' +
    'sub sup table tbody td th thead tr ul'
  ).split(' '),
  ALLOWED_ATTR: ['href', 'class', 'start'],
  ALLOWED_URI_REGEXP: /^(?:https?:\/\/|mailto:)/i,
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

DOMPurify.addHook('afterSanitizeAttributes', (node) => {
  if (node.nodeName !== 'A') return;
  node.setAttribute('rel', 'noopener noreferrer nofollow');
  node.setAttribute('target', '_blank');
});

// Returns HTML of ours as elements; the only way from text to elements in this page.
export const sanitized = (html) => DOMPurify.sanitize(html, ALLOWED);
