"""The API described as OpenAPI 3.1. Imported by `gateway/app.py` alone."""
