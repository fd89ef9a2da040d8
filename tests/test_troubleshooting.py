import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")


def _texts() -> Iterator[str]:
    """The texts of the package, with … for what is filled in."""
    for path in (ROOT / "src" / "inlay").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
            elif isinstance(node, ast.JoinedStr):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)


def test_the_sentences_of_the_page_are_those_of_the_package() -> None:
    sentences = re.findall(r"^\| `(.+?)` \|", PAGE, flags=re.MULTILINE)
    texts = list(_texts())
    assert len(sentences) >= 10
    assert [sentence for sentence in sentences if not any(sentence in text for text in texts)] == []
