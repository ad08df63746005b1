"""The workers behind a router: who they are, who lives, how busy each is."""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from triptych.errors import WorkerUnavailable
from triptych.router.policy import least_in_flight

WorkerRole = Literal["encode", "prefill-decode"]

ROLES: tuple[WorkerRole, ...] = ("encode", "prefill-decode")


@dataclass(slots=True, eq=False)
class Worker:
    """`in_flight` counts this router's own requests. Until the first health probe a worker is not healthy."""

    role: WorkerRole
    url: str
    healthy: bool = False
    in_flight: int = 0
    silent_probes: int = 0
    """Probes in a row that were not answered in time."""


class Members:
    """Belongs to one event loop."""

    def __init__(self, encode_urls: Sequence[str], prefill_decode_urls: Sequence[str]) -> None:
        self.workers = (
            *(Worker("encode", url.rstrip("/")) for url in encode_urls),
            *(Worker("prefill-decode", url.rstrip("/")) for url in prefill_decode_urls),
        )
        self._turn = 0

    @contextmanager
    def using(self, role: WorkerRole, avoid: Collection[Worker] = ()) -> Generator[Worker]:
        """Count a request on the least busy healthy worker of `role` that is not in `avoid`.

        Raises:
            WorkerUnavailable: there is none.
        """
        healthy = [w for w in self.workers if w.role == role and w.healthy and w not in avoid]
        if not healthy:
            raise WorkerUnavailable(f"no {role} worker is available")
        worker = healthy[least_in_flight([w.in_flight for w in healthy], self._turn)]
        self._turn += 1
        worker.in_flight += 1
        try:
            yield worker
        finally:
            worker.in_flight -= 1

    def missing_roles(self) -> tuple[WorkerRole, ...]:
        """Roles that have workers, of which none is healthy; prefill-decode is always needed."""
        missing: list[WorkerRole] = []
        for role in ROLES:
            workers = [worker for worker in self.workers if worker.role == role]
            if not any(worker.healthy for worker in workers) and (workers or role == "prefill-decode"):
                missing.append(role)
        return tuple(missing)
