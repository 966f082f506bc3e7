"""The model side: one process, one model, its devices; and the supervisor that starts them.

It never imports `gateway` or an HTTP library.
"""
