import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from bench.digits_archive import write_digits
from inlay.bench.campaign import campaign
from inlay.bench.variants import GROUPS

Inlay = Callable[..., CompletedProcess[str]]
Refused = Callable[..., str]

QUICK = ("--backbone", "resnet8", "--set", "training.epochs=1", "--base-set", "base.training.epochs=1")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_digits(tmp_path_factory.mktemp("data"))


def test_what_is_done_stays_done_and_what_fails_is_named(inlay: Inlay, tmp_path: Path) -> None:
    """CIFAR-100 is there but damaged, which the run itself finds out."""
    write_digits(tmp_path)
    (tmp_path / "cifar100.npz").write_bytes(b"")
    out = tmp_path / "out"
    places = ("--data", tmp_path, "--out", out, "--work", tmp_path / "work", "--device", "cpu")
    together = ("--side-by-side", 2, "--bases", 1)
    command = ("bench", "table1", *places, *QUICK, "--methods", "adm", "--seeds", 0, *together)
    first = inlay(*command, "--datasets", "cifar100,cifar10")
    assert first.returncode == 1
    failure = first.stderr.removesuffix("\n")
    assert failure.startswith(
        f"cifar100-adm-seed0 failed (see {tmp_path / 'work' / 'logs' / 'cifar100-adm-seed0.log'}): "
    )
    assert "cannot be read as arrays" in failure
    assert "\n" not in failure
    *news, heading, row = first.stdout.splitlines()
    assert [line.split(":")[0] for line in news] == ["1 of 2", "2 of 2"]
    assert {" ".join(line.split()[3:5]) for line in news} == {"cifar100-adm-seed0: failed", "cifar10-adm-seed0: Old"}
    metrics = json.loads((out / "cifar10-adm-seed0.json").read_text())["metrics"]
    assert row.split() == ["adm", "cifar10", "0", *(f"{100 * metrics[name]:.1f}" for name in ("old", "new", "all"))]
    written = {file: file.read_bytes() for file in out.iterdir()}
    again = inlay(*command, "--datasets", "cifar10")
    assert again.returncode == 0
    assert again.stderr == ""
    assert again.stdout.splitlines() == ["cifar10-adm-seed0: done before", heading, row]
    released = inlay(*command, "--datasets", "cifar10", "--score", "released")
    scores = json.loads((out / "cifar10-adm-seed0.json").read_text())["released"]
    assert released.stdout.split()[-3:] == [f"{100 * scores[name]:.1f}" for name in ("old", "new", "all")]
    assert {file: file.read_bytes() for file in out.iterdir()} == written


def test_dry_run_lists_and_writes_nothing(inlay: Inlay, data: Path, tmp_path: Path) -> None:
    places = ("--data", data, "--out", tmp_path / "out", "--work", tmp_path / "work")
    said = inlay("bench", "table1", *places, *QUICK, "--methods", "adm,inlay", "--datasets", "cifar10", "--dry-run")
    assert said.returncode == 0
    assert said.stdout.splitlines() == [
        f"cifar10-{method}-seed{seed}: to do" for method in ("adm", "inlay") for seed in (0, 1, 2)
    ]
    assert list(tmp_path.iterdir()) == []


def test_variants_are_listed_by_their_own_names(inlay: Inlay, data: Path, tmp_path: Path) -> None:
    said = inlay("bench", "variants", "gates,ablations", "--data", data, "--datasets", "cifar10", "--dry-run")
    assert said.returncode == 0
    lines = said.stdout.splitlines()
    assert len(lines) == sum(len(GROUPS[group]) for group in ("gates", "ablations"))
    assert "cifar10-gate-shuffled-seed0: to do" in lines
    wrong = inlay("bench", "variants", "colours", "--data", data, "--datasets", "cifar10", "--dry-run")
    assert wrong.returncode == 2
    assert "ladder, ablations, gates" in wrong.stderr


def test_everything_is_listed_and_stops_when_its_time_is_up(inlay: Inlay, data: Path, tmp_path: Path) -> None:
    places = ("--data", data, "--out", tmp_path / "out", "--work", tmp_path / "work", "--device", "cpu")
    command = ("bench", "all", *places, "--datasets", "cifar10", "--parts", "ours,gates")
    listed = inlay(*command, "--dry-run")
    assert listed.returncode == 0
    assert listed.stdout.splitlines() == [f"{run.label}: to do" for run in campaign(["ours", "gates"], ["cifar10"])]
    assert list(tmp_path.iterdir()) == []
    stopped = inlay(*command, "--minutes", 0)
    assert stopped.returncode == 0
    assert stopped.stdout.splitlines()[-1] == "Stopped with 0 of 12 runs ended; repeat the command to go on."


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--methods", "magic"), "There is no method 'magic' in the benchmark"),
        (("--methods", "adm,"), "Write --methods as names with commas between them"),
        (("--datasets", "mnist"), "There is no data set 'mnist' in the benchmark"),
        (("--datasets", "cifar100"), "cifar100 is not in"),
        (("--seeds", "one"), "Write --seeds as whole numbers with commas between them, such as 0,1,2, not 'one'."),
        (("--steps", "2"), "cifar10 is not cut into 2 discovery stages"),
        (("--base", "theirs"), "There is no base recipe 'theirs'"),
        (("--preset", "theirs"), "There is no preset 'theirs'"),
        (("--set", "epochs=3"), "There is no setting 'epochs'"),
        (("--base-set", "training.epochs=3"), "'training.epochs' is no setting of the base stage"),
        (("--backbone", "resnet9000"), "resnet9000"),
        (("--device", "tpu"), "There is no device 'tpu'"),
    ],
)
def test_bench_refuses(refused: Refused, data: Path, tmp_path: Path, options: tuple[str, str], complaint: str) -> None:
    usual = {"--methods": "adm", "--datasets": "cifar10", "--out": tmp_path / "out", "--work": tmp_path / "work"}
    words = [word for pair in {**usual, options[0]: options[1]}.items() for word in pair]
    assert complaint in refused(data, "bench", "table1", "--data", data, *words)
    assert list(tmp_path.iterdir()) == []


def test_a_pace_that_a_device_does_not_allow_is_refused_before_any_run(
    refused: Refused, data: Path, tmp_path: Path
) -> None:
    places = ("--data", data, "--out", tmp_path / "out", "--work", tmp_path / "work", "--device", "cpu")
    said = refused(data, "bench", "all", *places, "--datasets", "cifar10", "--pace", "graph")
    assert "Steps are recorded by one process on a CUDA device only; write pace=auto or pace=eager." in said
    assert list(tmp_path.iterdir()) == []
