import signal
from collections.abc import Iterator

import pytest
import torch

# The longest first, so that no worker is left alone with one of them at the end.
LONG = (
    "test_walk_photographs",
    "test_two_processes",
    "test_review_in_browser",
    "test_processes",
    "test_real_networks",
    "test_group_resume",
    "test_bench_table2",
    "test_tracing",
    "test_scaling",
    "test_walk_digits",
    "test_resume",
    "test_world",
    "test_random_networks",
    "test_estimator",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))


@pytest.fixture(autouse=True, scope="session")
def one_thread_and_a_cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INLAY_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True, scope="session")
def ctrl_c_is_heard() -> Iterator[None]:
    # What a shell starts in the background is born deaf to Ctrl-C, and the commands tested here are not.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def compiled_anew() -> Iterator[None]:
    """Forgets what was compiled, before the test and after it."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
