from collections.abc import Mapping

import pytest

from inlay.engine.progress import counting


class Told:
    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def note(self, text: str) -> None:
        self.calls.append(("note", text))

    def start(self, name: str, total: int, done: int) -> None:
        self.calls.append(("start", name, total, done))

    def step(self, done: int, losses: Mapping[str, float]) -> None:
        self.calls.append(("step", done, dict(losses)))

    def finish(self) -> None:
        self.calls.append(("finish",))


def test_work_in_parts_is_shown() -> None:
    told = Told()
    with counting(told, "reading") as report:
        for done in (32, 64, 70):
            report(done, 70)
    steps: list[tuple[object, ...]] = [("step", done, {}) for done in (32, 64, 70)]
    assert told.calls == [("start", "reading", 70, 0), *steps, ("finish",)]


def test_work_done_at_once_or_not_at_all_is_not_shown() -> None:
    told = Told()
    with counting(told, "reading") as report:
        report(5, 5)
    with counting(told, "reading"):
        pass
    assert told.calls == []


def test_work_that_fails_is_finished() -> None:
    told = Told()
    with pytest.raises(KeyError), counting(told, "reading") as report:
        report(1, 2)
        raise KeyError
    assert told.calls[-1] == ("finish",)
