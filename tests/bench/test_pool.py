import os
import signal
import sys
import time
from pathlib import Path

import pytest

from inlay.bench import pool
from inlay.bench.pool import Ending, Job, run_side_by_side
from inlay.errors import Interrupted


def _job(folder: Path, name: str, code: str) -> Job:
    return Job(name, [sys.executable, "-S", "-c", code], folder / f"{name}.log")


def _ignore(ending: Ending) -> None:
    pass


def test_one_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    jobs = [
        _job(tmp_path, "bad", "import sys; print('so far so good'); sys.exit('Error: It went wrong.')"),
        _job(tmp_path, "good", "print('done')"),
    ]
    told: list[Ending] = []
    endings = run_side_by_side(jobs, 1, told.append)
    assert [(ending.job.name, ending.failure) for ending in endings] == [
        ("bad", "It went wrong."),
        ("good", None),
    ]
    assert told == endings
    assert [(ending.number, ending.total) for ending in endings] == [(1, 2), (2, 2)]
    assert endings[0].seconds_left == pytest.approx(endings[0].seconds)
    assert endings[1].seconds_left == 0
    assert (tmp_path / "good.log").read_text() == "done\n"


def test_silent_failure_has_a_reason(tmp_path: Path) -> None:
    (ending,) = run_side_by_side([_job(tmp_path, "mute", "import os; os._exit(3)")], 1, _ignore)
    assert ending.failure == "It said nothing; its exit code is 3."


def test_jobs_run_at_the_same_time_and_share_the_cores(tmp_path: Path) -> None:
    """Each waits for the other's file, so both must be there at once."""
    code = (
        "import os, pathlib, sys, time\n"
        "folder, mine, other = pathlib.Path({folder!r}), {mine!r}, {other!r}\n"
        "(folder / mine).touch()\n"
        "while not (folder / other).exists(): time.sleep(0.01)\n"
        "print(os.environ['OMP_NUM_THREADS'], os.environ['TORCHINDUCTOR_COMPILE_THREADS'])"
    )
    jobs = [
        _job(tmp_path, name, code.format(folder=str(tmp_path), mine=name, other=other))
        for name, other in (("a", "b"), ("b", "a"))
    ]
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("OMP_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"):
            patch.delenv(variable, raising=False)
        endings = run_side_by_side(jobs, 2, _ignore)
    assert [ending.failure for ending in endings] == [None, None]
    share = max(1, (os.cpu_count() or 1) // 2)
    assert (tmp_path / "a.log").read_text().split() == [str(share), str(share)]


def test_ctrl_c_stops_the_children_and_starts_no_others(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    sleep = f"import os, pathlib, time; pathlib.Path({str(pid)!r}).write_text(str(os.getpid())); time.sleep(600)"
    wait = f"import pathlib, time\nwhile not pathlib.Path({str(pid)!r}).exists(): time.sleep(0.01)"
    jobs = [_job(tmp_path, "long", sleep), _job(tmp_path, "short", wait), _job(tmp_path, "later", "print()")]

    def press(ending: Ending) -> None:
        assert ending.job.name == "short"
        while not pid.read_text():
            time.sleep(0.01)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match="Stopped with 1 of 3 runs ended; repeat the command to go on"):
        run_side_by_side(jobs, 2, press)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
    assert not (tmp_path / "later.log").exists()


def test_time_that_is_up_stops_the_children_and_starts_no_others(tmp_path: Path) -> None:
    too_late = tmp_path / "too late"
    sleep = f"import pathlib, time; time.sleep(600); pathlib.Path({str(too_late)!r}).touch()"
    endings = run_side_by_side([_job(tmp_path, "long", sleep), _job(tmp_path, "later", "print()")], 1, _ignore, 1.0)
    assert endings == []
    assert (tmp_path / "long.log").exists()
    assert not too_late.exists() and not (tmp_path / "later.log").exists()


def test_jobs_that_would_wait_for_one_under_way_come_later(tmp_path: Path) -> None:
    """The first makes what the second shares, and is not done with it before the third has ended."""
    made, third, old = tmp_path / "made", tmp_path / "third", tmp_path / "old"
    made.touch()
    os.utime(made, (0, 0))
    wait = f"import pathlib, time\nwhile not pathlib.Path({str(third)!r}).exists(): time.sleep(0.01)\n"
    jobs = [
        Job("first", [sys.executable, "-S", "-c", f"{wait}pathlib.Path({str(made)!r}).touch()"], old, "base", made),
        Job("second", [sys.executable, "-S", "-c", ""], old, "base", made),
        Job("third", [sys.executable, "-S", "-c", f"open({str(third)!r}, 'w')"], old, "other", made),
    ]
    endings = run_side_by_side(jobs, 2, _ignore)
    assert [ending.failure for ending in endings] == [None, None, None]
    names = [ending.job.name for ending in endings]
    assert names.index("third") < names.index("second")


def test_what_is_made_keeps_nobody_waiting(tmp_path: Path) -> None:
    """The first has made what it shares and waits for the second, which is taken before the third."""
    made, second, log = tmp_path / "made", tmp_path / "second", tmp_path / "log"
    wait = "import pathlib, time\nwhile not pathlib.Path({!r}).exists(): time.sleep(0.01)\n"
    make = f"import pathlib; pathlib.Path({str(made)!r}).touch()\n"
    python = [sys.executable, "-S", "-c"]
    jobs = [
        Job("first", [*python, make + wait.format(str(second))], log, "base", made),
        Job("any", [*python, wait.format(str(made))], log),
        Job("second", [*python, f"open({str(second)!r}, 'w')"], log, "base", made),
        Job("third", [*python, ""], log, "other", made),
    ]
    names = [ending.job.name for ending in run_side_by_side(jobs, 2, _ignore)]
    assert names.index("second") < names.index("third")


def test_no_more_make_at_the_same_time_than_may(tmp_path: Path) -> None:
    """The first makes until the second, which makes nothing, has ended; the third, which makes, comes after both."""
    made, second, third, log = (tmp_path / name for name in ("made", "second", "third", "log"))
    wait = f"import pathlib, time\nwhile not pathlib.Path({str(second)!r}).exists(): time.sleep(0.01)\n"
    python = [sys.executable, "-S", "-c"]
    last = f"time.sleep(0.3); assert not pathlib.Path({str(third)!r}).exists(); open({str(made)!r}, 'w')"
    jobs = [
        Job("first", [*python, wait + last], log, "base", made),
        Job("third", [*python, f"open({str(third)!r}, 'w')"], tmp_path / "third.log", "other", third),
        Job("same", [*python, ""], tmp_path / "same.log", "base", made),
        Job("second", [*python, f"open({str(second)!r}, 'w')"], tmp_path / "second.log"),
    ]
    endings = run_side_by_side(jobs, 4, _ignore, makers=1)
    assert [ending.failure for ending in endings] == [None] * 4
    assert [ending.job.name for ending in endings][:2] == ["second", "first"]


def test_jobs_whose_base_is_there_do_not_count_as_making(tmp_path: Path) -> None:
    """The first has made its base and waits for the third, which shares it, and the second, which makes another."""
    first, second, third, log = (tmp_path / name for name in ("first", "second", "third", "log"))
    both = " or ".join(f"not pathlib.Path({str(name)!r}).exists()" for name in (second, third))
    python = [sys.executable, "-S", "-c"]
    begin = f"import pathlib, time\npathlib.Path({str(first)!r}).touch()\nwhile {both}: time.sleep(0.01)"
    jobs = [
        Job("first", [*python, begin], log, "base", first),
        Job("second", [*python, f"open({str(second)!r}, 'w')"], tmp_path / "second.log", "other", second),
        Job("third", [*python, f"open({str(third)!r}, 'w')"], tmp_path / "third.log", "base", first),
    ]
    assert [ending.failure for ending in run_side_by_side(jobs, 2, _ignore, makers=1)] == [None] * 3


def test_all_that_would_wait_begin_where_nothing_else_is_left(tmp_path: Path) -> None:
    code = (
        "import pathlib, time\npathlib.Path({mine!r}).touch()\n"
        "while not pathlib.Path({other!r}).exists(): time.sleep(0.01)"
    )
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    jobs = [
        Job(name, [sys.executable, "-S", "-c", code.format(mine=mine, other=other)], tmp_path / f"{name}.log", "base")
        for name, mine, other in (("first", a, b), ("second", b, a))
    ]
    assert [ending.failure for ending in run_side_by_side(jobs, 2, _ignore)] == [None, None]


def test_one_that_does_not_stop_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_SECONDS_TO_STOP", 0.5)
    pid = tmp_path / "pid"
    deaf = (
        "import os, pathlib, signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); "
        f"pathlib.Path({str(pid)!r}).write_text(str(os.getpid())); time.sleep(600)"
    )
    assert run_side_by_side([_job(tmp_path, "deaf", deaf)], 1, _ignore, 2.0) == []
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
