from pathlib import Path

import pytest
import torch

from inlay import decisions
from inlay.decided import decided, keep_decisions, kept_decisions
from inlay.decisions import Decision, Merge, Reject, Rename, Split, Undo
from inlay.knowledge import Knowledge
from inlay.run_folder import RunFolder

CPU = torch.device("cpu")


def _knowledge(run: RunFolder, stage: int = -1) -> Knowledge:
    return Knowledge.from_files(*run.read(stage), CPU)


def _six_features(knowledge: Knowledge) -> torch.Tensor:
    return torch.randn(6, knowledge.statistics.mean.shape[1], generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "taken",
    [
        [Rename(3, "cat", "today")],
        [Merge((4, 5), 3)],
        [Merge((4,), 0), Rename(5, "dog")],
        [Reject(4)],
        [Split(4, (0, 1, 0, 1, 0, 0), ("a", "b"))],
        [Split(4, (0, 1, 0, 1, 0, 0)), Undo()],
        [Merge((4,), 3), Undo("later")],
    ],
)
def test_a_run_opens_as_it_was_decided_bit_for_bit_without_images(run: Path, taken: list[Decision]) -> None:
    folder = RunFolder.open(run)
    before = _knowledge(folder)
    outcome = decisions.replay(before, taken, lambda id: _six_features(before))
    keep_decisions(folder, before, taken, outcome)
    again = RunFolder.open(run)
    opened = decided(again, _knowledge(again))
    assert kept_decisions(again, before) == taken
    (tensors, facts), (wanted, wanted_facts) = opened.to_files(), outcome.to_files()
    assert facts == wanted_facts
    assert tensors.keys() == wanted.keys()
    assert all(torch.equal(tensors[name], wanted[name]) for name in wanted)


def test_a_run_without_decisions_opens_as_its_stage_left_it(run: Path) -> None:
    folder = RunFolder.open(run)
    knowledge = _knowledge(folder)
    assert decided(folder, knowledge) is knowledge
    assert kept_decisions(folder, knowledge) == []


def test_an_earlier_stage_and_one_learned_anew_have_no_part_in_decisions(run: Path) -> None:
    folder = RunFolder.open(run)
    before = _knowledge(folder)
    taken = [Reject(4)]
    keep_decisions(folder, before, taken, decisions.replay(before, taken))
    base = _knowledge(folder, 0)
    assert decided(folder, base) is base
    tensors, facts = folder.read(1)
    facts["stage"]["seconds"] += 1
    folder.truncate(1, {})
    folder.commit(1, "novel", tensors, facts)
    anew = _knowledge(folder)
    assert decided(folder, anew) is anew


def test_decisions_are_readable_json(run: Path) -> None:
    folder = RunFolder.open(run)
    before = _knowledge(folder)
    taken: list[Decision] = [Rename(3, "cat", "today")]
    keep_decisions(folder, before, taken, decisions.replay(before, taken))
    written = folder.read_extra("decisions")
    assert written is not None
    (entry,) = written
    assert entry["stage"] == 1
    assert entry["decisions"] == [{"decision": "rename", "id": 3, "name": "cat", "when": "today"}]
    assert entry["outcome"]["classes"]["classes"][3]["name"] == "cat"
