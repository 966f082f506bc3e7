"""What tenants share and what each pays for it. Pure bookkeeping of the dispatcher.

Imported by the dispatcher alone.
"""
