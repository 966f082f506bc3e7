"""The web page and the files of `--path`: which paths they have, and how files are sent.

`gateway/app.py` adds their routes behind all others.
"""
