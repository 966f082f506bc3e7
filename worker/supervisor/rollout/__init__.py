"""Rolling changes: the workers are replaced one at a time, and rolled back if a new one fails.

Decisions are pure (`machine.py`, `plan.py`, `room.py`); `fleet.py` carries them out.
"""
