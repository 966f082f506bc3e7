"""What an admin sees and changes: the state of workers and processes, orders to the supervisor.

Imported by `gateway/routes/` and `gateway/server.py`.
"""
