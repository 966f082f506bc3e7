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
    this.reasonsSince = null;
    this.reasonedMs = message.reasoningMs ?? 0;
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
      this.reasonsSince ??= now;
    } else if (this.reasonsSince !== null) {
      this.reasonedMs += now - this.reasonsSince;
      this.reasonsSince = null;
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
    const sinceMs = this.reasonsSince === null ? 0 : performance.now() - this.reasonsSince;
    return {
      ...this.message,
      content: this.content,
      reasoning: this.reasoning,
      reasoningMs: this.reasonedMs + sinceMs,
      ...(this.calls.length ? { toolCalls: this.calls.filter(Boolean).map((one) => ({ ...one })) } : {}),
      ...changes,
    };
  }

  // Returns what stands under the answer; `route` is what the server has told of its way there.
  figures({ worker = '', route = '', nCached = null, queueMs = null }) {
    const { timings, usage } = this;
    const cached = usage?.prompt_tokens_details?.cached_tokens ?? timings?.cache_n;
    return {
      n: usage?.completion_tokens ?? timings?.predicted_n ?? null,
      perSecond: timings?.predicted_per_second ?? null,
      ttftMs: this.firstAt === null ? null : this.firstAt - this.startedAt,
      prompt: usage?.prompt_tokens ?? null,
      cached: cached ?? nCached,
      worker,
      route,
      queueMs,
    };
  }
}
