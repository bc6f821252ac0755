"""The user's one knob: how much error a plan may trade for time."""

from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from .errors import PolicyError

PolicyName = Literal["exact", "balanced", "fast"]


class Policy(BaseModel):
    """How a plan is chosen.

    exact: what a prefix cache gives, bit for bit. balanced: the cheapest plan whose predicted KL stays
    inside `kl_budget` (nats, next token; the prediction is a bound, not a mean: see `errors_model`). fast:
    the cheapest plan, whatever its KL.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: PolicyName = "balanced"
    kl_budget: float = Field(default=0.1, ge=0)
    stash: bool = True
    """Copy exact KV to the store before it is lost, so that a recall can load it."""

    @classmethod
    def parse(cls, value: "str | Policy") -> "Policy":
        """A policy from its name. Raises PolicyError for an unknown one."""
        if isinstance(value, Policy):
            return value
        names = get_args(PolicyName)
        if value not in names:
            raise PolicyError(f"policy {value!r}", f"one of {', '.join(names)}", "pick one of them")
        return cls.model_validate({"name": value})

    @property
    def allowance(self) -> float:
        """The KL a plan is held against: none for exact."""
        return 0.0 if self.name == "exact" else self.kl_budget
