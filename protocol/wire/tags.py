"""The name that each message has on the wire."""

from protocol.wire import messages as m
from protocol.wire import sharing
from protocol.wire import side_tasks as s
from protocol.wire.cached import Cached

TAGS: dict[str, type[m.Message | m.TaskMessage]] = {
    "welcome": m.Welcome,
    "refused": m.Refused,
    "opened": m.Opened,
    "generate": m.Generate,
    "tokenize": m.Tokenize,
    "detokenize": m.Detokenize,
    "inspect": m.Inspect,
    "cancel": m.Cancel,
    "proceed": m.Proceed,
    "drain": m.Drain,
    "ping": m.Ping,
    "returned": sharing.Returned,
    "demand": sharing.Demand,
    "successor": sharing.Successor,
    "stay": sharing.Stay,
    "hello": m.Hello,
    "ready": m.Ready,
    "admitted": m.Admitted,
    "heartbeat": m.Heartbeat,
    "recall": sharing.Recall,
    "started": m.Started,
    "cached": Cached,
    "progress": m.Progress,
    "prompt_read": m.PromptRead,
    "delta": m.Delta,
    "done": m.Done,
    "failed": m.Failed,
    "tokenized": m.Tokenized,
    "detokenized": m.Detokenized,
    "inspected": m.Inspected,
    "draining": m.Draining,
    "bye": m.Bye,
    "render": s.Render,
    "rendered": s.Rendered,
    "embed": s.Embed,
    "embedded": s.Embedded,
    "end_reasoning": s.EndReasoning,
    "reasoning_ended": s.ReasoningEnded,
    "rerank": s.Rerank,
    "reranked": s.Reranked,
    "slot_action": s.SlotAction,
    "slot_acted": s.SlotActed,
    "set_lora": s.SetLora,
    "lora_listed": s.LoraListed,
    "set_system_prompt": s.SetSystemPrompt,
    "system_prompt_set": s.SystemPromptSet,
    "settings": sharing.SettingsReport,
}
PAYLOADS = frozenset(cls for cls in TAGS.values() if issubclass(cls, m.TaskMessage))
"""What travels in an envelope."""
