import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from inlay.bench.places import first_alone

_SECONDS = 30.0


def test_others_wait_for_the_first_and_then_not_for_one_another(tmp_path: Path) -> None:
    lock, together = tmp_path / "lock", threading.Barrier(2)
    order: list[str] = []

    def later() -> None:
        with first_alone(lock):
            order.append("later")
            # Broken, if the other of the two has to wait.
            together.wait(_SECONDS)

    with ThreadPoolExecutor(2) as pool:
        with first_alone(lock):
            others = [pool.submit(later) for _ in range(2)]
            assert not any(other.done() for other in others)
            order.append("first")
        for other in others:
            other.result()
    assert order == ["first", "later", "later"]


def test_where_the_first_fails_the_next_is_alone(tmp_path: Path) -> None:
    lock, inside = tmp_path / "lock", threading.Lock()

    def failing() -> None:
        with first_alone(lock):
            raise ValueError

    def alone() -> None:
        with first_alone(lock):
            assert inside.acquire(blocking=False)
            threading.Event().wait(0.2)
            inside.release()

    with pytest.raises(ValueError):
        failing()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(alone)
        alone()
        waiting.result()
