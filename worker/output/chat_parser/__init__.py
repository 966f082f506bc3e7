"""From the raw text of a chat answer to content, thoughts and tool calls."""
