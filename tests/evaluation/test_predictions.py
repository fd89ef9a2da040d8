import re
from pathlib import Path

import pytest

from inlay.errors import InlayError
from inlay.evaluation.predictions import PredictionRow, read_predictions, score_file

HEADER = "split,stage,truth,prediction"

# Outputs: cat 0, dog 1 | stage 1, three clusters for fox and hen: 2, 3, 4 | stage 2, two clusters for ant,
# bee and cow: 5, 6.
# Stage 1 shares: cluster 2 has fox 1, hen 2; cluster 3 is empty; cluster 4 has fox 2 -> hen is 2, fox is 4.
# Stage 2 shares: cluster 5 has bee 2, cow 1; cluster 6 has ant 3, bee 1, cow 1 -> bee is 5, ant is 6, and cow
# has none.
MATCH_ROWS = """\
match,1,fox,4
match,1,fox,4
match,1,fox,2
match,1,hen,2
match,1,hen,2
match,2,ant,6
match,2,ant,6
match,2,ant,6
match,2,bee,5
match,2,bee,5
match,2,bee,6
match,2,cow,5
match,2,cow,6
"""
TEST_ROWS = """\
test,0,cat,0
test,0,cat,1
test,0,dog,1
test,1,fox,4
test,1,fox,2
test,1,hen,2
test,2,ant,6
test,2,ant,0
test,2,bee,5
test,2,cow,5
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "predictions.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_two_stages_matched_on_training_images(tmp_path: Path) -> None:
    path = written(tmp_path, f"{HEADER}\n{MATCH_ROWS}{TEST_ROWS}")
    scores = score_file(path, cluster_counts=[3, 2])
    # base: cat 1/2, dog 1/1. stage 1: fox 1/2, hen 1/1. stage 2: ant 1/2, bee 1/1, cow 0/1.
    assert scores.groups == {"base": 2 / 3, "stage1": 2 / 3, "stage2": 2 / 4}
    assert (scores.old, scores.new, scores.all) == (4 / 6, 2 / 4, 6 / 10)
    assert scores.counts == {"old": 6, "new": 4, "all": 10}
    assert scores.matched_on == "train"
    assert (scores.new_head, scores.old_head, scores.nmi, scores.ari) == (None, None, None, None)


def test_the_file_of_the_docs(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "results.md").read_text(encoding="utf-8")
    [block] = re.findall(r"```csv\n(.*?)```", page, flags=re.DOTALL)
    file = tmp_path / "predictions.csv"
    file.write_text(block)
    scores = score_file(file)
    assert (scores.old, scores.new, scores.all, scores.matched_on) == (0.5, 0.5, 0.5, "train")
    assert (scores.new_head, scores.old_head) == (1.0, 1.0)


def test_without_match_rows_the_test_rows_decide(tmp_path: Path) -> None:
    # Both stages have as many clusters as classes: outputs fox/hen 2, 3 and ant/bee 4, 5. On the test rows
    # fox is mostly 3 and hen is 2; ant is 5, which leaves 4 to bee. The bee in output 0 takes no part.
    rows = ["0,cat,0", "0,dog,0", "1,fox,3", "1,fox,3", "1,fox,2", "1,hen,2", "2,ant,5", "2,bee,0"]
    text = "\n".join([HEADER, *(f"test,{row}" for row in rows)])
    scores = score_file(written(tmp_path, text))
    assert scores.groups == {"base": 1 / 2, "stage1": 3 / 4, "stage2": 1 / 2}
    assert scores.matched_on == "test"


def test_the_split_that_matches_decides_the_score(tmp_path: Path) -> None:
    # On the training images ant is 1 and bee is 2; on the test images they have changed places.
    test_rows = "test,0,cat,0\ntest,1,ant,2\ntest,1,bee,1\n"
    trained = score_file(written(tmp_path, f"{HEADER}\nmatch,1,ant,1\nmatch,1,bee,2\n{test_rows}"))
    tested = score_file(written(tmp_path, f"{HEADER}\n{test_rows}"))
    assert (trained.new, tested.new) == (0.0, 1.0)


def test_heads_are_read_on_the_rows_they_belong_to(tmp_path: Path) -> None:
    text = (
        "split,stage,truth,prediction,new_head,old_head\n"
        "match,1,ant,2,,\nmatch,1,bee,3,,\n"
        "test,0,cat,2,,0\ntest,0,dog,1,,0\n"
        "test,1,ant,0,2,\ntest,1,bee,3,3,\ntest,1,bee,3,2,\n"
    )
    scores = score_file(written(tmp_path, text))
    # Old outputs only: cat right, dog wrong. New outputs only: ant right, one bee of two right.
    assert (scores.old_head, scores.new_head) == (1 / 2, 2 / 3)
    assert (scores.old, scores.new, scores.all) == (1 / 2, 2 / 3, 3 / 5)
    # Cluster 2 holds ant and bee, cluster 3 holds bee: no pair of images is together in both, one is together
    # in a cluster, one in a class, of three; (0 - 1/3) / (1 - 1/3).
    assert scores.ari == pytest.approx(-1 / 2)
    assert scores.nmi is not None


def test_base_stage_alone(tmp_path: Path) -> None:
    text = f"{HEADER},new_head\ntest,0,dog,1,\ntest,0,cat,1,4\ntest,0,cat,0,\n"
    scores = score_file(written(tmp_path, text))
    assert (scores.old, scores.all, scores.old_head) == (2 / 3, 2 / 3, 2 / 3)
    assert (scores.new, scores.new_head, scores.matched_on) == (None, None, None)


def test_base_outputs_follow_the_given_class_names(tmp_path: Path) -> None:
    path = written(tmp_path, f"{HEADER}\ntest,0,cat,2\ntest,0,dog,0\ntest,1,ant,3\n")
    assert score_file(path, class_names=["dog", "elk", "cat"]).all == 1.0
    with pytest.raises(InlayError, match="class_names must name each base class once"):
        score_file(path, class_names=["dog", "dog"])
    with pytest.raises(InlayError, match="base classes only, but 'ant' belongs to a later stage"):
        score_file(path, class_names=["dog", "cat", "ant"])
    with pytest.raises(InlayError, match="line 2: truth must be one of the given class names, not 'cat'"):
        score_file(path, class_names=["dog", "elk"])


def test_base_classes_with_numbers_for_names_follow_the_numbers(tmp_path: Path) -> None:
    numbered = [f"test,0,{output},{output}" for output in range(12)]
    assert score_file(written(tmp_path, "\n".join([HEADER, *numbered]))).all == 1.0
    # One name that is no number: 10 comes before 2, as text.
    mixed = ["test,0,10,0", "test,0,2,1", "test,0,cat,2"]
    assert score_file(written(tmp_path, "\n".join([HEADER, *mixed]))).all == 1.0


def test_rows_keep_their_lines_and_spaces_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "predictions.csv"
    path.write_text(f'{HEADER},old_head\n\n match , 1,"hen, red", 7,\ntest,0,cat,0,3\n', encoding="utf-8-sig")
    assert read_predictions(path) == [
        PredictionRow(3, "match", 1, "hen, red", 7, None, None),
        PredictionRow(4, "test", 0, "cat", 0, None, 3),
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "",
            ", line 1: the columns must be split, stage, truth, prediction and, if wanted, new_head, old",
        ),
        ("split,stage,truth\n", ", line 1: the columns must be"),
        (f"{HEADER},newhead\n", ", line 1: the columns must be"),
        (f"{HEADER},truth\n", ", line 1: the columns must be"),
        (f"{HEADER}\ntest,0,cat\n", ", line 2: a row must have 4 cells."),
        (f"{HEADER}\ntest,0,cat,0,0\n", ", line 2: a row must have 4 cells."),
        (f"{HEADER}\ntrain,0,cat,0\n", ", line 2: split must be match or test, not 'train'."),
        (f"{HEADER}\ntest,-1,cat,0\n", ", line 2: stage must be a whole number from 0, not '-1'."),
        (f"{HEADER}\ntest,0,cat,0.5\n", ", line 2: prediction must be a whole number from 0, not '0.5'."),
        (f"{HEADER}\ntest,0,cat,\n", ", line 2: prediction must be a whole number from 0, not ''."),
        (
            f"{HEADER},new_head\ntest,0,cat,0,x\n",
            ", line 2: new_head must be a whole number from 0, not 'x'.",
        ),
        (f"{HEADER}\ntest,0, ,0\n", ", line 2: truth must be the name of a class."),
        (f"{HEADER}\nmatch,0,cat,0\n", ", line 2: match rows are for stages from 1, as base classes need no"),
        (
            f"{HEADER}\ntest,0,cat,0\ntest,1,cat,1\n",
            ", line 3: class 'cat' must keep the stage 0 of its first",
        ),
        (f"{HEADER}\n", " has no test row of stage 0; write test rows of every stage from 0 to 0."),
        (f"{HEADER}\ntest,0,cat,0\ntest,2,ant,1\n", " has no test row of stage 1; write test rows of every"),
        (f"{HEADER}\ntest,0,cat,0\nmatch,1,ant,1\n", " has no test row of stage 1; write test rows of every"),
        (
            f"{HEADER}\ntest,0,cat,0\ntest,1,ant,1\ntest,2,bee,2\nmatch,2,bee,2\n",
            " has no match row of stage 1; write match rows of every stage from 1, or none.",
        ),
        (
            f"{HEADER}\ntest,0,cat,2\ntest,1,ant,1\n",
            ", line 2: prediction of a test row of stage 0 must lie from 0 to 1, not 2.",
        ),
        (
            f"{HEADER}\ntest,0,cat,0\ntest,1,ant,1\nmatch,1,ant,0\n",
            ", line 4: prediction of a match row of stage 1 must lie from 1 to 1, not 0.",
        ),
        (
            f"{HEADER},new_head\ntest,0,cat,0,\ntest,1,ant,1,0\n",
            ", line 3: new_head of a test row of stage 1 must lie from 1 to 1, not 0.",
        ),
        (
            f"{HEADER},old_head\ntest,0,cat,0,1\ntest,1,ant,1,\n",
            ", line 2: old_head of a test row of stage 0 must lie from 0 to 0, not 1.",
        ),
        (
            f"{HEADER},new_head\ntest,0,cat,0,\ntest,1,ant,1,1\ntest,1,ant,1,\n",
            ", line 4: new_head must be given here too, as other rows of its kind have it.",
        ),
        (
            f"{HEADER},old_head\ntest,0,cat,0,0\ntest,0,cat,0,\ntest,1,ant,1,\n",
            ", line 3: old_head must be given here too, as other rows of its kind have it.",
        ),
        (f'{HEADER}\ntest,0,"cat"x,0\n', " is not a CSV file in UTF-8 ("),
    ],
)
def test_malformed_files_are_refused_in_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InlayError) as caught:
        score_file(path)
    assert str(caught.value).startswith(f"{path}{sentence}")


def test_files_that_are_missing_or_not_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InlayError, match=r"none.csv cannot be read \(No such file or directory\); write"):
        score_file(tmp_path / "none.csv")
    with pytest.raises(InlayError, match="cannot be read"):
        score_file(tmp_path)
    binary = tmp_path / "predictions.csv"
    binary.write_bytes(b"split,\xff\xfe\n")
    with pytest.raises(InlayError, match="is not a CSV file in UTF-8"):
        score_file(binary)


def test_cluster_counts_must_fit_the_stages(tmp_path: Path) -> None:
    path = written(tmp_path, f"{HEADER}\ntest,0,cat,0\ntest,1,ant,1\n")
    for counts in ([], [1, 1], [0]):
        with pytest.raises(InlayError, match=r"one number from 1 for each later stage; .* has 1 of them"):
            score_file(path, cluster_counts=counts)
