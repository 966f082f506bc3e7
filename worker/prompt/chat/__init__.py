"""From a conversation to the prompt, the grammar and what the answer may hold."""
