"""Who may connect to the ROUTER over tcp: authorised keys, ZAP, failed handshakes, cutting.

Imported by `gateway.pool.connections` and `gateway.pool.router_socket` alone.
"""
