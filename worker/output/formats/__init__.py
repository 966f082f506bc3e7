"""How model families write tool calls and reasoning, as tables."""
