import json
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

import inlay
from inlay import branches
from inlay.decided import keep_decisions
from inlay.decisions import Decision, Reject, Rename, replay
from inlay.run_folder import RunFolder
from inlay.serving.model import ServedModel

Ask = Callable[..., TestClient]


def _form(files: list[Path]) -> list[tuple[str, tuple[str, bytes]]]:
    return [("images", (file.name, file.read_bytes())) for file in files]


def _predicted(answer: Any) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["predictions"]
    return found


def _sentence(answer: Any, status: int) -> str:
    assert answer.status_code == status, answer.text
    assert list(answer.json()) == ["error"]
    sentence = str(answer.json()["error"])
    assert sentence.endswith(".") and "/home" not in sentence and "Traceback" not in sentence
    return sentence


def test_several_files_are_answered_as_learner_predicts_them(
    client: TestClient, finished: Path, files: list[Path]
) -> None:
    found = _predicted(client.post("/predict", files=_form(files)))
    expected = inlay.load(finished, device="cpu").predict(files)
    assert [row["source"] for row in found] == [file.name for file in files]
    keys = ("id", "name", "probability", "discovered")
    assert [[row[key] for key in keys] for row in found] == [[getattr(p, key) for key in keys] for p in expected]
    assert {row["discovered"] for row in found} == {False, True}


@pytest.mark.parametrize("kind", ["image/png", "image/anything", "IMAGE/JPEG; q=1", "application/octet-stream"])
def test_one_file_is_the_whole_body(client: TestClient, files: list[Path], kind: str) -> None:
    alone = _predicted(client.post("/predict", content=files[3].read_bytes(), headers={"Content-Type": kind}))
    (among,) = _predicted(client.post("/predict", files=_form(files[3:4])))
    assert alone == [{**among, "source": "image"}]


def test_pixels_are_answered_as_the_array_is(client: TestClient, finished: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 1), dtype=np.uint8)
    learner = inlay.load(finished, device="cpu")
    for given in (pixels, pixels[0], pixels[0, :, :, 0]):
        found = _predicted(client.post("/predict", json={"pixels": given.tolist()}))
        assert [(row["id"], row["probability"]) for row in found] == [
            (p.id, p.probability) for p in learner.predict(given)
        ]


def test_the_next_best_classes_follow_the_best(client: TestClient, files: list[Path]) -> None:
    asked = {top: _predicted(client.post(f"/predict?top={top}", files=_form(files))) for top in (1, 3, 5, 1000)}
    assert _predicted(client.post("/predict", files=_form(files)))[0]["top"] == asked[5][0]["top"]
    assert asked[1000] == asked[5]
    for one, three, five in zip(asked[1], asked[3], asked[5], strict=True):
        assert one["top"] == [{key: one[key] for key in ("id", "name", "probability", "discovered")}]
        assert one["top"] == three["top"][:1] and three["top"] == five["top"][:3]
        probabilities = [row["probability"] for row in five["top"]]
        assert probabilities == sorted(probabilities, reverse=True)
        assert sum(probabilities) == pytest.approx(1, abs=1e-5)


def test_files_without_a_name_or_with_a_strange_one(client: TestClient, files: list[Path]) -> None:
    image = files[0].read_bytes()
    names = ["../../etc/passwd", "Katze ü.png", 'a "b".png']
    found = _predicted(client.post("/predict", files=[("images", (name, image)) for name in names]))
    assert [row["source"] for row in found][:2] == names[:2]
    body = b'--x\r\nContent-Disposition: form-data; name="images"\r\n\r\n' + image + b"\r\n--x--\r\n"
    kind = {"Content-Type": "multipart/form-data; boundary=x"}
    assert _predicted(client.post("/predict", content=body, headers=kind))[0]["source"] == "images#0"
    body = body.replace(b'"images"', b'"images"; filename="\xff.png"')
    assert _predicted(client.post("/predict", content=body, headers=kind))[0]["source"] == "\ufffd.png"


def test_what_is_known_of_the_model(client: TestClient, finished: Path) -> None:
    learner = inlay.load(finished, device="cpu")
    info, classes = client.get("/info").json(), client.get("/classes").json()["classes"]
    assert [(row["id"], row["name"], row["stage"]) for row in classes] == [
        (entry.id, entry.name, entry.stage) for entry in learner.classes
    ]
    assert [row["discovered"] for row in classes] == [False] * 3 + [True] * 2
    folded = branches.folded_parameters(learner.knowledge.network, learner.knowledge.form.example())
    assert (info["parameters"], info["version"], info["stage"]) == (folded, inlay.__version__, 1)
    assert info["input"] == {"height": 8, "width": 8, "channels": 1}
    assert [(row["stage"], row["kind"], row["classes"]) for row in info["stages"]] == [
        (0, "base", 3),
        (1, "novel", 2),
    ]
    assert info["limits"]["pixels"] == Image.MAX_IMAGE_PIXELS
    assert info["limits"]["bytes"] == 20_000_000
    assert client.get("/health").json() == {"status": "ok"}


def test_no_path_of_the_machine_is_told(client: TestClient, finished: Path, files: list[Path]) -> None:
    asked = [client.get("/info"), client.get("/classes"), client.post("/predict", files=_form(files))]
    assert not [answer.text for answer in asked if str(finished.parent.parent) in answer.text]


def test_several_threads_are_answered_alike(client: TestClient, files: list[Path]) -> None:
    expected = [_predicted(client.post("/predict", files=_form([file]))) for file in files[:6]]
    found: dict[int, object] = {}

    def asked(number: int) -> None:
        found[number] = _predicted(client.post("/predict", files=_form([files[number]])))

    threads = [threading.Thread(target=asked, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[number] for number in range(6)] == expected


def test_a_body_that_is_too_long_is_refused_with_or_without_a_stated_length(ask: Ask, files: list[Path]) -> None:
    client, kind = ask(bytes=1000), {"Content-Type": "image/png"}

    def parts() -> Iterator[bytes]:
        for _ in range(11):
            yield b"x" * 100

    assert "at most 1,000 bytes" in _sentence(client.post("/predict", content=b"x" * 1001, headers=kind), 413)
    assert "at most 1,000 bytes" in _sentence(client.post("/predict", content=parts(), headers=kind), 413)
    assert len(_predicted(client.post("/predict", content=files[0].read_bytes(), headers=kind))) == 1


def test_too_many_images(ask: Ask, files: list[Path]) -> None:
    client = ask(images=3)
    assert len(_predicted(client.post("/predict", files=_form(files[:3])))) == 3
    assert "at most 3" in _sentence(client.post("/predict", files=_form(files[:4])), 413)
    pixels = np.zeros((4, 8, 8), dtype=int).tolist()
    assert "at most 3" in _sentence(client.post("/predict", json={"pixels": pixels}), 413)


def test_too_little_time(ask: Ask, files: list[Path]) -> None:
    assert "to decode; send fewer" in _sentence(ask(seconds=-1).post("/predict", files=_form(files[:1])), 413)


def test_too_many_requests(ask: Ask, files: list[Path]) -> None:
    client = ask(requests=0)
    assert "ask again" in _sentence(client.post("/predict", files=_form(files[:1])), 503)
    assert client.get("/health").status_code == 200


def test_a_picture_of_too_many_pixels(client: TestClient, monkeypatch: pytest.MonkeyPatch, files: list[Path]) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    answer = client.post("/predict", files=_form(files[:2]))
    assert "'digit 0.png' cannot be read as an image (more pixels than is safe" in _sentence(answer, 422)


@pytest.mark.parametrize(
    ("kind", "body", "status", "words"),
    [
        ("image/png", b"", 422, "no image in the request"),
        ("image/png", b"this is no image", 422, "'image' cannot be read as an image (no known image format)"),
        ("", b"x", 415, "Content-Type"),
        ("text/plain", b"x", 415, "Content-Type"),
        ("application/x-www-form-urlencoded", b"images=x", 415, "Content-Type"),
        ("multipart/form-data", b"x", 400, "boundary"),
        ("multipart/form-data; boundary=x", b"", 400, "cut off"),
        ("multipart/form-data; boundary=x", b"--y\r\n", 400, "damaged"),
        ("multipart/form-data; boundary=x", b"--x\r\n\r\nabc\r\n--x--\r\n", 400, "damaged"),
        ("multipart/form-data; boundary=x", b"--x--\r\n", 422, "no image in the request"),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="images"; filename="a"\r\n\r\nabc',
            400,
            "cut off",
        ),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="photo"; filename="a"\r\n\r\nabc\r\n--x--\r\n',
            422,
            "in that one",
        ),
        ("application/json", b"{", 400, "not sound JSON"),
        ("application/json", b"[" * 100_000, 400, "not sound JSON"),
        ("application/json", b"[]", 422, "one key pixels"),
        ("application/json", b'{"pixels": [], "more": 1}', 422, "one key pixels"),
        ("application/json", b'{"pixels": null}', 422, "whole numbers"),
        ("application/json", b'{"pixels": {}}', 422, "whole numbers"),
        ("application/json", b'{"pixels": [[1, 2], [3]]}', 422, "whole numbers"),
        ("application/json", b'{"pixels": [[0.5, 1]]}', 422, "whole numbers"),
        ("application/json", b'{"pixels": [[256, 1]]}', 422, "whole numbers"),
        ("application/json", b'{"pixels": [[NaN, 1]]}', 422, "whole numbers"),
        ("application/json", b'{"pixels": [[' + b"9" * 400 + b"]]}", 422, "whole numbers"),
        ("application/json", b'{"pixels": [' + b"[" * 80 + b"1" + b"]" * 80 + b"]}", 422, "whole numbers"),
        ("application/json", b'{"pixels": 7}', 422, "shape"),
        ("application/json", b'{"pixels": []}', 422, "shape"),
    ],
)
def test_requests_that_are_refused_in_one_sentence(
    client: TestClient, kind: str, body: bytes, status: int, words: str
) -> None:
    assert words in _sentence(client.post("/predict", content=body, headers={"Content-Type": kind}), status)


@pytest.mark.parametrize("top", ["0", "-1", "x", "1.5", "", "9" * 5000])
def test_a_number_of_classes_that_is_none(client: TestClient, files: list[Path], top: str) -> None:
    assert "whole number" in _sentence(client.post(f"/predict?top={top}", files=_form(files[:1])), 422)


def test_other_addresses_and_methods(client: TestClient) -> None:
    for path in ("/", "/nowhere", "/predict/", "/docs", "/openapi.json", "/..%2fetc/passwd"):
        assert "/predict" in _sentence(client.get(path), 404)
    answer = client.get("/predict")
    assert "does not take GET; send POST" in _sentence(answer, 405)
    assert answer.headers["allow"] == "POST"
    assert "send GET" in _sentence(client.post("/classes", json={}), 405)


def test_a_run_that_goes_back_is_loaded_anew(ask: Ask, run: Path, files: list[Path]) -> None:
    client = ask(ServedModel(run, "cpu", print))
    assert client.get("/info").json()["stage"] == 1
    inlay.load(run, device="cpu").rollback(0)
    assert client.get("/info").json()["stage"] == 0
    found = _predicted(client.post("/predict?top=9", files=_form(files)))
    assert [row["id"] for row in found] == [p.id for p in inlay.load(run, device="cpu").predict(files)]
    assert {len(row["top"]) for row in found} == {3}


def test_a_decision_about_classes_is_seen_at_once(ask: Ask, run: Path, files: list[Path]) -> None:
    client = ask(ServedModel(run, "cpu", print))
    assert client.get("/info").json()["classes"] == 5
    folder, before = RunFolder.open(run), inlay.load(run, device="cpu").knowledge
    taken: list[Decision] = [Rename(3, "three"), Reject(4)]
    keep_decisions(folder, before, taken, replay(before, taken))
    classes = client.get("/classes").json()["classes"]
    assert [(row["name"], row["status"]) for row in classes[3:]] == [("three", "active"), ("new-1.2", "rejected")]
    found = _predicted(client.post("/predict?top=9", files=_form(files)))
    assert {entry["id"] for row in found for entry in row["top"]} == {0, 1, 2, 3}


def test_a_run_that_is_damaged_or_gone_is_told_without_its_place(ask: Ask, run: Path, files: list[Path]) -> None:
    said: list[str] = []
    client = ask(ServedModel(run, "cpu", said.append))
    manifest = run / "inlay.json"
    whole = manifest.read_bytes()
    manifest.write_bytes(whole.replace(b'"stages"', b'"stagez"'))
    for asked in (client.get("/info"), client.get("/classes"), client.post("/predict", files=_form(files[:1]))):
        assert "cannot be read at the moment" in _sentence(asked, 503)
    assert len(said) == 3 and str(manifest) in said[0]
    manifest.unlink()
    assert str(run) not in _sentence(client.get("/info"), 503)
    assert client.get("/health").status_code == 200
    manifest.write_bytes(whole)
    assert json.loads(client.get("/info").text)["stage"] == 1


def test_the_docs_show_what_is_answered(client: TestClient, files: list[Path]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "serve.md").read_text()
    (shown,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    (row,) = json.loads(shown)["predictions"]
    (answered,) = _predicted(client.post("/predict?top=2", files=_form(files[:1])))
    assert list(row) == list(answered)
    assert [list(entry) for entry in row["top"]] == [list(entry) for entry in answered["top"]]
    limits = client.get("/info").json()["limits"]
    for name, line in {
        "bytes": "| length of a request | {:,} bytes",
        "images": "| images of a request | {:,} |",
        "pixels": "| pixels of an image | {:,} ",
        "seconds": "| time for a request to arrive | {:g} seconds |",
        "requests": "| requests that are read or wait | {:,} |",
    }.items():
        assert line.format(limits[name]) in text
