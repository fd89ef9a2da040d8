import os
import signal
import threading

import pytest

from inlay.engine.interrupt import InterruptWatch


def _press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_first_ctrl_c_is_a_request_and_the_second_stops() -> None:
    before = signal.getsignal(signal.SIGINT)
    watch = InterruptWatch()
    with pytest.raises(KeyboardInterrupt), watch:
        assert not watch.requested
        _press_ctrl_c()
        assert watch.requested
        _press_ctrl_c()
        pytest.fail("the second Ctrl-C did not stop")
    assert signal.getsignal(signal.SIGINT) is before


def test_each_watch_begins_without_a_request() -> None:
    watch = InterruptWatch()
    with watch:
        _press_ctrl_c()
    with watch:
        assert not watch.requested


def test_handler_of_the_user_comes_back() -> None:
    calls: list[int] = []
    original = signal.signal(signal.SIGINT, lambda number, frame: calls.append(number))
    try:
        with InterruptWatch():
            _press_ctrl_c()
        assert calls == []
        _press_ctrl_c()
        assert calls == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, original)


def test_other_threads_leave_the_handler_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen: list[object] = []

    def work() -> None:
        with InterruptWatch() as watch:
            seen.extend([signal.getsignal(signal.SIGINT), watch.requested])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before, False]
    assert signal.getsignal(signal.SIGINT) is before
