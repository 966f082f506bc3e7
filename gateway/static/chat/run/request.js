// Builds the body of a chat request from the messages of a branch and the settings of the chat.

// Only what the user has changed is sent; the rest are the server's defaults.
export function requestBody({ model, path, settings, isContinued }) {
  const last = path.at(-1);
  return {
    ...(model ? { model } : {}),
    messages: [
      ...(settings.system?.trim() ? [{ role: 'system', content: settings.system }] : []),
      ...path.map(messageOf),
    ],
    ...settings.sampling,
    ...parsed('tools', settings.tools),
    ...formatOf(settings.schema),
    ...(parsed('extra', settings.extra).extra ?? {}),
    // Reasoning that was cut goes on as reasoning.
    ...(isContinued && last.reasoning && !last.content
      ? { continue_final_message: 'reasoning_content', add_generation_prompt: false }
      : {}),
    stream: true,
    stream_options: { include_usage: true },
    return_progress: true,
    reasoning_control: true,
  };
}

function messageOf({ role, content, attachments, reasoning, toolCalls, toolCallId }, i, path) {
  if (role === 'tool') return { role, content, tool_call_id: toolCallId };
  if (role === 'user') return { role, content: partsOf(content, attachments ?? []) };
  // The reasoning of earlier answers is not sent again, unless this one is to go on.
  const keepsReasoning = reasoning && i === path.length - 1;
  return {
    role,
    content,
    ...(keepsReasoning ? { reasoning_content: reasoning } : {}),
    ...(toolCalls?.length ? { tool_calls: toolCalls.map(callOf) } : {}),
  };
}

const callOf = ({ id, name, arguments: given }) => ({
  id,
  type: 'function',
  function: { name, arguments: given },
});

function partsOf(text, attachments) {
  if (!attachments.length) return text;
  return [...attachments.map(partOf), ...(text ? [{ type: 'text', text }] : [])];
}

function partOf({ kind, url }) {
  if (kind === 'image') return { type: 'image_url', image_url: { url } };
  const [, type, data] = /^data:audio\/([\w.+-]+)[^,]*,(.*)$/s.exec(url);
  const format = /wav/.test(type) ? 'wav' : 'mp3';
  return { type: 'input_audio', input_audio: { data, format } };
}

// The settings dialog lets nobody save what is no JSON.
const parsed = (name, text) => (text?.trim() ? { [name]: JSON.parse(text) } : {});

function formatOf(schema) {
  if (!schema?.trim()) return {};
  const json_schema = { name: 'answer', schema: JSON.parse(schema) };
  return { response_format: { type: 'json_schema', json_schema } };
}
