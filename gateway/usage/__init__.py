"""What requests have cost, by key, model and day: a log of JSON lines, and SQLite for questions.

Nothing here runs on the event loop but `UsageRecorder.put`, which only appends to a queue.
"""
