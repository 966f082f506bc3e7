// The settings with which a new chat starts: those of --ui-config, in llama-server's words.

import { theme } from '../../shared/stored.js';
import { amend, open } from '../store/chats.js';
import { fieldsOf, valueOf } from './fields.js';

let isDone = false;

// Gives them to a chat that has none yet, once; what the user chooses then takes precedence.
export function startWith(props) {
  const given = props?.ui_settings;
  if (isDone || !given) return;
  isDone = true;
  if (!theme.peek() && (given.theme === 'dark' || given.theme === 'light')) theme.value = given.theme;
  const { settings, createdAt } = open.peek();
  if (createdAt || Object.keys(settings).length) return;
  const sampling = Object.fromEntries(
    fieldsOf(props)
      .map((field) => [field.name, valueOf(field, given[field.name])])
      .filter(([, value]) => value !== undefined),
  );
  const system = typeof given.systemMessage === 'string' ? given.systemMessage : '';
  amend(open.peek(), { settings: { ...(system ? { system } : {}), sampling } });
}
