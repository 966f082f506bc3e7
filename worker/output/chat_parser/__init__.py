"""Parses the raw text of a chat answer to content, reasoning and tool calls."""
