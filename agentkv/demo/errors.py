"""What can go wrong in a demo, apart from what the engine itself raises."""

from __future__ import annotations

from agentkv.errors import AgentKVError, InvalidInput


class CheckFailed(AgentKVError):
    """Two arms that must agree do not: no number of this run can be trusted, so none is printed."""


class TooFewDocuments(AgentKVError):
    """This Python environment has too few packages with a README of English prose."""


class MissingExtra(AgentKVError, ImportError):
    """An optional dependency that is not installed."""


class BadOutput(InvalidInput):
    """A path that a result could not be written to."""
