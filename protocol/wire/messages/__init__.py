"""Every message of the wire, both directions.

A frame is one ZeroMQ message and holds the messages of one engine step (or of one gateway turn) in
order. Invariants, property-tested on both sides:

- each task ends with exactly one terminal message, and nothing of that attempt follows it;
- `Started` comes before the first `Delta`; the text of a task is the concatenation of its deltas;
- `Heartbeat.step` grows while `busy > 0`, or else the worker is stuck, not alive;
- what belongs to a task travels in an `Envelope`, what belongs to the connection does not; a
  receiver drops and counts envelopes of an attempt that it has given up.

An envelope whose payload cannot be read fails its own task only: the payload becomes `Malformed`.
Adding a field with a default is compatible; anything else raises `WIRE_VERSION`.
"""

from protocol.wire.messages.answers import (
    Delta,
    Detokenized,
    Done,
    Failed,
    Finish,
    Inspected,
    Progress,
    PromptRead,
    Started,
    Tokenized,
    ToolCallDelta,
)
from protocol.wire.messages.connection import (
    Admitted,
    Bye,
    Drain,
    Draining,
    Heartbeat,
    Hello,
    Opened,
    Ping,
    Ready,
    Refused,
    Welcome,
)
from protocol.wire.messages.envelope import (
    ClientTask,
    Envelope,
    FrameItem,
    Malformed,
    Message,
    TaskKey,
    TaskMessage,
    Terminal,
)
from protocol.wire.messages.requests import (
    Cancel,
    Chat,
    Detokenize,
    Generate,
    Infill,
    Inspect,
    Proceed,
    Tokenize,
    content_text,
)

__all__ = [
    "Admitted",
    "Bye",
    "Cancel",
    "Chat",
    "ClientTask",
    "Delta",
    "Detokenize",
    "Detokenized",
    "Done",
    "Drain",
    "Draining",
    "Envelope",
    "Failed",
    "Finish",
    "FrameItem",
    "Generate",
    "Heartbeat",
    "Hello",
    "Infill",
    "Inspect",
    "Inspected",
    "Malformed",
    "Message",
    "Opened",
    "Ping",
    "Proceed",
    "Progress",
    "PromptRead",
    "Ready",
    "Refused",
    "Started",
    "TaskKey",
    "TaskMessage",
    "Terminal",
    "Tokenize",
    "Tokenized",
    "ToolCallDelta",
    "Welcome",
    "content_text",
]
