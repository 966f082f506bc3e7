"""All workers behind one `submit`: tasks, queue, credits, connections, streams.

Imported by the routes, the models and the server; knows nothing of HTTP.
"""
