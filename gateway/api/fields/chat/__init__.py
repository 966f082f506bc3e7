"""What the chats of all dialects share: messages, tools, reasoning.

Imported by the dialects and by `gateway/api/chat_request.py`; imports no dialect.
"""
