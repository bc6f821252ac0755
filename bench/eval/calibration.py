"""The calibration that ships, as table rows."""

from __future__ import annotations

from agentkv_orchestrator.cost import CostTable

from agentkv.calibrate import terminal

Table = tuple[list[str], list[list[str]]]


def trust() -> Table:
    """How predictions did on texts that they had not seen."""
    return terminal.trust(CostTable.shipped())


def errors() -> Table:
    """The fitted figures."""
    return terminal.errors(CostTable.shipped())


def prices() -> Table:
    """Milliseconds and bytes by op."""
    return terminal.prices(CostTable.shipped())


def edits() -> Table:
    """Coverage by edit."""
    found = CostTable.shipped().evaluation
    names = found.edits if found else {}
    return [*names], [[f"{share:.2f}" for share in names.values()]]
