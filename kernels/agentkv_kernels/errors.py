"""Errors of the kernels. Each says what it got, what it expected and what to do."""


class KernelError(Exception):
    """Base of every error a kernel raises itself."""


class NoKernelError(KernelError, LookupError):
    """There is no implementation of `op` for this device or backend."""

    def __init__(self, op: str, wanted: str, available: tuple[str, ...]) -> None:
        self.op, self.wanted, self.available = op, wanted, available
        super().__init__(
            f"got op {op!r} on {wanted}; expected one of {', '.join(available)}; "
            "do: move the tensors to a device that has a kernel, or name a backend"
        )


class ShapeError(KernelError, ValueError):
    """A tensor argument has a shape, dtype or device that does not fit the others."""

    def __init__(self, what: str, got: object, expected: object, do: str) -> None:
        self.what, self.got, self.expected, self.do = what, got, expected, do
        super().__init__(f"{what}: got {got}; expected {expected}; do: {do}")


class RowIndexError(KernelError, IndexError):
    """A destination row lies outside the slot. Raised before anything is written."""

    def __init__(self, got: object, rows: int, do: str) -> None:
        self.got, self.rows, self.do = got, rows, do
        super().__init__(f"destination rows: got {got}; expected rows in 0..{rows - 1}; do: {do}")


class OverlapError(KernelError, ValueError):
    """Source and destination of a one-pass kernel share memory in a way that would corrupt the result."""

    def __init__(self, what: str, do: str) -> None:
        self.what, self.do = what, do
        super().__init__(f"{what}: got overlapping memory; expected separate memory; do: {do}")
