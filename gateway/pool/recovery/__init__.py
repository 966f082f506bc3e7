"""What happens after a fault: answers go on elsewhere, requests and workers that do harm wait.

Pure: the dispatcher asks, and acts on what it hears.
"""
