"""Who has to make room: a tenant over its quota, and else the one that holds most.

So a tenant that fills the store pushes itself out: one that holds no more than its even share of the budget
loses nothing to the others.
"""

from __future__ import annotations

from agentkv.errors import InvalidInput


class Shares:
    """Bytes by tenant under one budget.

    budget: bytes of all together. tenant_bytes: of one tenant at most (None: the budget). Raises InvalidInput
    for either below 1.
    """

    def __init__(self, budget: int, tenant_bytes: int | None = None) -> None:
        for size in (budget, budget if tenant_bytes is None else tenant_bytes):
            if size < 1:
                raise InvalidInput(
                    got=f"a budget of {size} bytes", expected="at least 1 byte", do="pass a larger budget"
                )
        self.budget = budget
        self.tenant_bytes = budget if tenant_bytes is None else min(tenant_bytes, budget)
        self.held: dict[str, int] = {}
        self.total = 0

    def possible(self, size: int) -> bool:
        """Whether an entry of ``size`` bytes could ever be kept."""
        return size <= self.tenant_bytes

    def pays(self, tenant: str, size: int) -> str | None:
        """Whose entry has to leave before ``tenant`` may add ``size`` bytes; None when there is room."""
        mine = self.held.get(tenant, 0)
        if mine + size > self.tenant_bytes:
            return tenant
        if self.total + size <= self.budget:
            return None
        most = max(self.held, key=lambda name: self.held[name])
        # The newcomer counts with what it is about to add; one that holds nothing has nothing to give.
        return tenant if mine and mine + size >= self.held[most] else most

    def copy(self) -> Shares:
        """Books of one's own, to try something out."""
        twin = Shares(self.budget, self.tenant_bytes)
        twin.held, twin.total = dict(self.held), self.total
        return twin

    def add(self, tenant: str, size: int) -> None:
        """Bytes that came, or went where negative."""
        self.total += size
        now = self.held.get(tenant, 0) + size
        if now:
            self.held[tenant] = now
        else:
            self.held.pop(tenant, None)
