import os
import signal
import threading
from types import SimpleNamespace

import pytest

from inlay.engine import interrupt
from inlay.engine.interrupt import InterruptWatch


class Clock:
    """A clock that goes on when told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(interrupt, "time", SimpleNamespace(monotonic=lambda: self.now))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def _press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def _ask_to_end() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_first_ctrl_c_is_a_request_and_a_later_one_stops(clock: Clock) -> None:
    before = signal.getsignal(signal.SIGINT)
    watch = InterruptWatch()
    with pytest.raises(KeyboardInterrupt), watch:
        assert not watch.requested
        _press_ctrl_c()
        assert watch.requested
        clock.now += 1.1
        _press_ctrl_c()
        pytest.fail("the second Ctrl-C did not stop")
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_that_a_launcher_passes_on_belongs_to_the_first(clock: Clock) -> None:
    with InterruptWatch() as watch:
        try:
            for _ in range(3):
                _press_ctrl_c()
                clock.now += 0.4
        except KeyboardInterrupt:
            pytest.fail("a Ctrl-C within a second of the first stopped")
        assert watch.requested
        with pytest.raises(KeyboardInterrupt):
            _press_ctrl_c()  # 1.2 seconds after the first


def test_sigterm_is_a_request_and_never_stops_at_once(clock: Clock) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with InterruptWatch() as watch:
        _ask_to_end()
        assert watch.requested
        clock.now += 60
        _ask_to_end()
        assert watch.requested
    assert signal.getsignal(signal.SIGTERM) is before


def test_ctrl_c_long_after_sigterm_stops(clock: Clock) -> None:
    with pytest.raises(KeyboardInterrupt), InterruptWatch():
        _ask_to_end()
        _press_ctrl_c()
        clock.now += 1.1
        _press_ctrl_c()
        pytest.fail("the late Ctrl-C did not stop")


def test_each_watch_begins_without_a_request() -> None:
    watch = InterruptWatch()
    with watch:
        _press_ctrl_c()
    with watch:
        assert not watch.requested


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_handler_of_the_user_comes_back(number: signal.Signals) -> None:
    calls: list[int] = []
    original = signal.signal(number, lambda received, frame: calls.append(received))
    try:
        with InterruptWatch():
            os.kill(os.getpid(), number)
        assert calls == []
        os.kill(os.getpid(), number)
        assert calls == [number]
    finally:
        signal.signal(number, original)


def test_other_threads_leave_the_handlers_alone() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    seen: list[object] = []

    def work() -> None:
        with InterruptWatch() as watch:
            seen.extend([*(signal.getsignal(number) for number in numbers), watch.requested])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [*before, False]
    assert [signal.getsignal(number) for number in numbers] == before
