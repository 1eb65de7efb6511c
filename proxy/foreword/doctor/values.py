"""Values of query rows, which are of any type to a type checker."""


def whole(value: object) -> int:
    """A number as an integer; what is not there counts 0."""
    return round(value) if isinstance(value, int | float) else 0


def real(value: object) -> float:
    """A number; what is not there counts 0."""
    return float(value) if isinstance(value, int | float) else 0.0


def text(value: object) -> str | None:
    """A name, or None."""
    return None if value is None else str(value)
