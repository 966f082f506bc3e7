"""Rolling changes: the workers are replaced one at a time, and all goes back if a new one is bad.

Decisions are pure (`machine.py`, `plan.py`, `room.py`); `fleet.py` carries them out.
"""
