"""What can go wrong in a diagnosis, apart from what the engine and the files of a run raise themselves."""

from __future__ import annotations

from agentkv.errors import AgentKVError, InvalidInput


class BadText(InvalidInput):
    """A text file that is not there, empty, or no UTF-8."""


class BrokenState(AgentKVError):
    """A file to go on from that is no diagnosis: damaged, or something else."""


class OtherRun(AgentKVError):
    """A file to go on from that was written for another model, other texts or other settings."""
