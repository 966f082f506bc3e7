"""The machine's hardware, and which part of it each worker gets.

Imported by the settings, the supervisor and the doctor.
"""
