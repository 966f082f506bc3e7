"""What the machine is, and which part of it each worker gets. Pure but for reading it.

Imported by the settings, the supervisor and the doctor.
"""
