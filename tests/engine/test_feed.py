import threading
import time
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
import torch
from torch import Tensor

from inlay.engine.feed import Feed, HostPixels, ResidentFeed, StreamedFeed, feed_of
from inlay.errors import InlayError

CPU = torch.device("cpu")
IMAGES = torch.arange(60 * 2 * 3 * 4, dtype=torch.int64).remainder(251).to(torch.uint8).reshape(60, 2, 3, 4)


class RecordingReader:
    """Reads from a tensor and notes which images were asked for; some images can be slow or damaged."""

    def __init__(self, images: Tensor = IMAGES, slow: int | None = None, damaged: int | None = None) -> None:
        self.host = HostPixels(images)
        self.shape = self.host.shape
        self.slow = slow
        self.damaged = damaged
        self.asked: list[int] = []
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.host)

    def read(self, indices: Tensor) -> Tensor:
        with self.lock:
            self.asked += indices.tolist()
        if self.slow in indices.tolist():
            time.sleep(0.05)
        if self.damaged in indices.tolist():
            raise InlayError(f"image {self.damaged} cannot be read")
        return self.host.read(indices)


def feeds() -> list[Feed]:
    return [
        ResidentFeed(IMAGES),
        StreamedFeed(RecordingReader(), CPU),
        StreamedFeed(RecordingReader(slow=7), CPU, ahead=1, workers=1),
        StreamedFeed(RecordingReader(slow=7), CPU, ahead=5, workers=7),
    ]


@pytest.mark.parametrize("feed", feeds())
def test_batches_are_the_images_asked_for_in_order(feed: Feed) -> None:
    assert (len(feed), feed.shape, feed.device) == (60, (2, 3, 4), CPU)
    generator = torch.Generator().manual_seed(0)
    table = torch.stack([torch.randperm(60, generator=generator)[:25] for _ in range(7)])
    batches = list(feed.batches(table))
    assert len(batches) == 7
    for request, batch in zip(table, batches, strict=True):
        assert batch.dtype == torch.uint8
        assert torch.equal(batch, torch.stack([IMAGES[index] for index in request.tolist()]))


@pytest.mark.parametrize("feed", feeds())
def test_requests_may_differ_in_length_and_repeat_images(feed: Feed) -> None:
    requests = [torch.tensor([3, 3, 59]), torch.tensor([0]), torch.arange(60), torch.zeros(0, dtype=torch.int64)]
    batches = list(feed.batches(iter(requests)))
    assert [batch.shape[0] for batch in batches] == [3, 1, 60, 0]
    assert torch.equal(batches[0], IMAGES[[3, 3, 59]]) and torch.equal(batches[2], IMAGES)
    assert list(feed.batches([])) == []


@pytest.mark.parametrize("ahead", [1, 2, 4])
def test_only_the_next_requests_are_read(ahead: int) -> None:
    reader = RecordingReader()
    requests = torch.arange(60).reshape(10, 6)
    begun = 0

    def counted() -> Iterator[Tensor]:
        nonlocal begun
        for request in requests:
            begun += 1
            yield request

    feed = StreamedFeed(reader, CPU, ahead=ahead, workers=2)
    for step, _ in enumerate(feed.batches(counted()), start=1):
        # The present one is in use, and `ahead` more are read meanwhile.
        assert begun == min(step + ahead, 10)
        with reader.lock:
            assert set(reader.asked) <= set(range(begun * 6))
    assert sorted(reader.asked) == list(range(60))


def test_reading_goes_on_while_a_batch_is_used() -> None:
    reader = RecordingReader()
    with closing(StreamedFeed(reader, CPU, ahead=2, workers=1).batches(torch.arange(60).reshape(10, 6))) as batches:
        next(batches)
        deadline = time.monotonic() + 30
        while len(reader.asked) < 18 and time.monotonic() < deadline:
            time.sleep(0.001)
        assert sorted(reader.asked) == list(range(18))


def test_a_request_is_shared_among_threads() -> None:
    together = threading.Barrier(3, timeout=30)

    class Meeting(RecordingReader):
        def read(self, indices: Tensor) -> Tensor:
            together.wait()
            return super().read(indices)

    reader = Meeting()
    (batch,) = StreamedFeed(reader, CPU, workers=3).batches([torch.arange(45)])
    assert torch.equal(batch, IMAGES[:45])


def test_nothing_runs_before_the_first_batch_and_nothing_after_the_last() -> None:
    threads = set(threading.enumerate())
    feed = StreamedFeed(RecordingReader(), CPU, workers=3)
    batches = feed.batches([torch.arange(40), torch.arange(40)])
    assert set(threading.enumerate()) == threads
    next(batches)
    assert len(set(threading.enumerate()) - threads) > 0
    assert len(list(batches)) == 1
    assert set(threading.enumerate()) == threads


def test_closing_early_stops_all_threads() -> None:
    threads = set(threading.enumerate())
    reader = RecordingReader(slow=6)
    batches = StreamedFeed(reader, CPU, ahead=3, workers=2).batches(torch.arange(60).reshape(10, 6))
    next(batches)
    batches.close()
    assert set(threading.enumerate()) == threads
    asked = len(reader.asked)
    time.sleep(0.05)
    assert len(reader.asked) == asked < 60


def test_an_error_reaches_the_consumer_at_its_batch() -> None:
    threads = set(threading.enumerate())
    batches = StreamedFeed(RecordingReader(damaged=20), CPU, workers=2).batches(torch.arange(60).reshape(10, 6))
    assert [len(next(batches)) for _ in range(3)] == [6, 6, 6]
    with pytest.raises(InlayError, match="image 20 cannot be read"):
        next(batches)
    assert set(threading.enumerate()) == threads


def test_an_error_of_the_consumer_stops_all_threads() -> None:
    threads = set(threading.enumerate())
    with (
        pytest.raises(KeyboardInterrupt),
        closing(StreamedFeed(RecordingReader(), CPU).batches(torch.arange(60).reshape(10, 6))) as batches,
    ):
        for _ in batches:
            raise KeyboardInterrupt
    assert set(threading.enumerate()) == threads


def test_waiting_is_counted() -> None:
    feed = StreamedFeed(RecordingReader(slow=0), CPU)
    list(feed.batches([torch.arange(6)]))
    once = feed.seconds_waiting
    assert once >= 0.04
    list(feed.batches([torch.arange(6)]))
    assert feed.seconds_waiting >= once + 0.04


@pytest.mark.parametrize("options", [{"ahead": 0}, {"workers": 0}])
def test_at_least_one_of_each(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        StreamedFeed(RecordingReader(), CPU, **options)


def test_a_tensor_on_the_cpu_stays_where_it_is_and_readers_are_streamed() -> None:
    resident = feed_of(IMAGES, CPU, margin=0.0)
    assert isinstance(resident, ResidentFeed)
    assert isinstance(feed_of(RecordingReader(), CPU), StreamedFeed)


def test_host_pixels() -> None:
    pixels = HostPixels(IMAGES.permute(0, 1, 3, 2))
    assert (len(pixels), pixels.shape) == (60, (2, 4, 3))
    np.testing.assert_array_equal(pixels.read(torch.tensor([5, 0])).numpy(), IMAGES[[5, 0]].transpose(2, 3).numpy())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_streaming_to_cuda() -> None:
    device = torch.device("cuda")
    table = torch.stack([torch.randperm(60) for _ in range(50)])
    for feed in (feed_of(IMAGES, device), feed_of(IMAGES, device, margin=0.0), StreamedFeed(RecordingReader(), device)):
        for request, batch in zip(table, feed.batches(table), strict=True):
            assert batch.device.type == "cuda"
            # Work on the consumer's stream, so that a batch that comes too early is seen.
            busy = torch.randn(256, 256, device=device)
            for _ in range(5):
                busy = busy @ busy
            assert torch.equal(batch.cpu(), IMAGES[request])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_what_does_not_fit_is_streamed() -> None:
    device = torch.device("cuda")
    assert isinstance(feed_of(IMAGES, device), ResidentFeed)
    assert isinstance(feed_of(IMAGES, device, margin=0.0), StreamedFeed)
    assert isinstance(feed_of(IMAGES.to(device), device, margin=0.0), ResidentFeed)
