import re
from pathlib import Path
from typing import Any

import pytest
import torch

PAGE = (Path(__file__).parent.parent / "docs" / "branches.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


def test_the_page_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, Any] = {"__name__": "page"}
    for block in BLOCKS:
        exec(compile(block, "docs/branches.md", "exec"), names)
    assert names["history"].stage_count == 2 and (tmp_path / "network.onnx").exists()
    images, labels = names["images"], names["labels"]
    with torch.no_grad():
        predicted = names["report"].model(images).logits.argmax(1)
    assert (predicted == labels).float().mean() > 0.8


def test_somebody_elses_loop_takes_at_most_twenty_lines() -> None:
    lines = [line for line in BLOCKS[0].splitlines() if line.strip()]
    assert "branches.attach(" in BLOCKS[0] and "branches.merge(" in BLOCKS[0] and len(lines) <= 20
