"""The endpoints, one file for each family: each reads a request, asks the pool, writes an answer.

An endpoint is a method that takes a request and returns a response. What writes its own frames
(`GenerationEndpoint`, `ModelEventStream`) is an ASGI application.
"""
