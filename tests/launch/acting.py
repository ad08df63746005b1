"""Something that serves until SIGTERM on the test's own thread, while the test acts on another."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

SECONDS = 30.0


def run_while(run: Callable[[], None], act: Callable[[], None]) -> None:
    """`run` here, where signals arrive; `act` on a thread; then SIGTERM. Needs the fixture `own_signals`."""
    failures: list[BaseException] = []

    def acting() -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001 -- shown below, on the test's own thread
            failures.append(error)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=acting)
    thread.start()
    try:
        run()
    finally:
        thread.join(SECONDS)
    if failures:
        raise failures[0]
