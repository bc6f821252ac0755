"""What goes wrong while planning, each with what was got, what was expected and what to do."""


class OrchestratorError(Exception):
    """Base of every error raised here; the three fields are kept so that callers can show them apart."""

    def __init__(self, got: str, expected: str, do: str) -> None:
        super().__init__(f"got {got}, expected {expected}; {do}")
        self.got = got
        self.expected = expected
        self.do = do


class ChunkError(OrchestratorError):
    """A chunk cannot be made or found."""


class WindowError(OrchestratorError):
    """A window, live or wanted, contradicts itself."""


class PolicyError(OrchestratorError):
    """No such policy."""


class CapacityError(OrchestratorError):
    """The wanted window does not fit into the rows there are."""


class PlanError(OrchestratorError):
    """A plan breaks a rule and must not be executed."""


class TraceError(OrchestratorError):
    """A trace cannot be read; `got` names the line."""
