"""Traces of requests, into the exporter in memory."""
