"""The machine's hardware, which part of it each worker gets, and children that ask its drivers.

Imported by the settings, the supervisor and the doctor.
"""
