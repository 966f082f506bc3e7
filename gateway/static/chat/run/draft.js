// An answer as it grows: folds the chunks of a stream into a message.

export class Draft {
  constructor(message) {
    this.message = message;
    this.content = message.content;
    this.reasoning = message.reasoning ?? '';
    this.calls = (message.toolCalls ?? []).map((one) => ({ ...one }));
    this.id = '';
    this.finish = null;
    this.timings = null;
    this.usage = null;
    this.startedAt = performance.now();
    this.firstAt = null; // of the first token
    this.thoughtAt = null;
    this.thoughtMs = message.reasoningMs ?? 0;
  }

  // Takes one chunk; returns what it told of the prompt's reading, if anything.
  take(chunk) {
    this.id ||= chunk.id ?? '';
    this.timings = chunk.timings ?? this.timings;
    this.usage = chunk.usage ?? this.usage;
    const choice = chunk.choices?.[0];
    if (choice) {
      this.finish = choice.finish_reason ?? this.finish;
      this.add(choice.delta ?? {});
    }
    return chunk.prompt_progress ?? null;
  }

  add({ content, reasoning_content: reasoning, tool_calls: calls }) {
    if (!content && !reasoning && !calls?.length) return;
    const now = performance.now();
    this.firstAt ??= now;
    if (reasoning) {
      this.reasoning += reasoning;
      this.thoughtAt ??= now;
    } else if (this.thoughtAt !== null) {
      this.thoughtMs += now - this.thoughtAt;
      this.thoughtAt = null;
    }
    if (content) this.content += content;
    for (const { index = 0, id, function: called } of calls ?? []) {
      const call = (this.calls[index] ??= { id: '', name: '', arguments: '' });
      call.id ||= id ?? '';
      call.name += called?.name ?? '';
      call.arguments += called?.arguments ?? '';
    }
  }

  // Returns the message as it stands now.
  shown(changes = {}) {
    const isThinking = this.thoughtAt !== null;
    return {
      ...this.message,
      content: this.content,
      reasoning: this.reasoning,
      reasoningMs: this.thoughtMs + (isThinking ? performance.now() - this.thoughtAt : 0),
      ...(this.calls.length ? { toolCalls: this.calls.filter(Boolean).map((one) => ({ ...one })) } : {}),
      ...changes,
    };
  }

  // Returns what stands under the answer.
  figures(headers, queuedMs) {
    const { timings, usage } = this;
    const cached = usage?.prompt_tokens_details?.cached_tokens ?? timings?.cache_n;
    return {
      n: usage?.completion_tokens ?? timings?.predicted_n ?? null,
      perSecond: timings?.predicted_per_second ?? null,
      ttftMs: this.firstAt === null ? null : this.firstAt - this.startedAt,
      prompt: usage?.prompt_tokens ?? null,
      cached: cached ?? null,
      worker: headers?.get('x-llamapool-worker') ?? '',
      route: headers?.get('x-llamapool-route') ?? '',
      queueMs: timings?.queue_ms ?? numberOf(headers?.get('x-llamapool-queue-ms')) ?? queuedMs,
    };
  }
}

const numberOf = (text) => (text ? Number(text) : null);
