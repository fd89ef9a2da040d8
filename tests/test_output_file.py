from pathlib import Path

import pytest

from inlay.errors import InlayError
from inlay.output_file import check_output, refuse_run_folder, write_output


def test_a_file_is_written_as_it_is(tmp_path: Path) -> None:
    write_output(tmp_path / "a.csv", "é,\udcff\r\n", overwrite=False)
    assert (tmp_path / "a.csv").read_bytes() == b"\xc3\xa9,\xff\r\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.csv"]


def test_a_file_that_is_there_stays_unless_told(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("mine")
    with pytest.raises(InlayError, match=r"a\.csv is there already; choose another name, or pass --overwrite to"):
        write_output(file, "other", overwrite=False)
    assert file.read_text() == "mine"
    write_output(file, "other", overwrite=True)
    assert file.read_text() == "other"


def test_a_link_that_leads_nowhere_is_there_too(tmp_path: Path) -> None:
    (tmp_path / "a.csv").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InlayError, match="is there already"):
        check_output(tmp_path / "a.csv", overwrite=False)


@pytest.mark.parametrize("name", [".", "no/a.csv"])
def test_a_folder_and_a_file_in_no_folder_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InlayError, match="give the name of a file in a folder that exists"):
        check_output(tmp_path / name, overwrite=True)


def test_a_run_folder_takes_no_images(tmp_path: Path) -> None:
    run = tmp_path / "run.inlay"
    run.mkdir()
    (run / "inlay.json").write_text("{}")
    refuse_run_folder(tmp_path / "beside.html")
    (tmp_path / "link").symlink_to(run)
    for place in (run / "a.html", run / "new" / "folder", tmp_path / "link" / "a.html"):
        with pytest.raises(
            InlayError, match=r"lies in the run folder .*run\.inlay, which holds a run and nothing else"
        ):
            refuse_run_folder(place)
