"""What ends a command of the doctor."""


class DoctorError(Exception):
    """Something that the user must mend; the text says what. Exit status 2."""
