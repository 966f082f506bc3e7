"""OpenTelemetry traces of requests, if they are turned on; `opentelemetry` is imported only then.

Imported by the server alone. The pool tells the trace of a request through
`gateway.pool.tasks.trace`.
"""
