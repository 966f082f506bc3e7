"""`python -m worker.doctor`: the same as `llamapool doctor`."""

from worker.doctor.command import doctor

if __name__ == "__main__":
    doctor(prog_name="llamapool doctor")
