"""Time a hybrid unit whose two convolutions run as one against the two run apart, and write the figures.

    python benchmarks/joint.py [--device cpu|cuda] [--out FILE]

Base and novel convolution see the same input, so one convolution with both kernels gives both outputs, and one pass
backward gives the gradient of the input; only the novel half needs a gradient of its kernel. The library runs the two
apart, because this was slower on an H200 and on 2 CPU cores (`benchmarks/results/joint-*.json`). Units without a batch
norm need neither: there the kernels are added and one layer of ordinary size is run.
"""

import argparse
import json
import os
import platform
import statistics
import time
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from inlay.bench.records import commit_of

RESULTS = Path(__file__).parent / "results"
REPEATS = 30
# Channels, side and groups: the four widths of ResNet-18 on 32×32 images, and a depthwise layer of EfficientNet.
SHAPES = [(64, 32, 1), (128, 16, 1), (256, 8, 1), (512, 4, 1), (96, 56, 96)]
GEOMETRY = ([1, 1], [1, 1], [1, 1], False, [0, 0])  # stride, padding, dilation, transposed, output padding


class JointConvolution(torch.autograd.Function):
    """One 3×3 convolution with two kernels, of which only the novel one learns."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, base: Tensor, bias: Tensor, novel: Tensor, groups: int) -> Any:
        """Return base and novel output, [N, C, H, W] each."""
        kernels = [torch.unflatten(kernel, 0, (groups, -1)) for kernel in (base, novel)]
        weight = torch.cat(kernels, dim=1).flatten(0, 1)
        joint = torch.convolution(images, weight, None, *GEOMETRY, groups)
        ctx.save_for_backward(images, weight, novel)
        ctx.groups, ctx.layout = groups, (joint.shape, joint.stride())
        # Copies: a slice would slow the batch norm that reads it.
        halves = [_half(joint, index, groups).flatten(1, 2).clone() for index in (0, 1)]
        return halves[0].add_(bias.view(-1, 1, 1)), halves[1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Return the gradients of images and novel kernel."""
        images, weight, novel = ctx.saved_tensors
        joint = gradients[1].new_empty_strided(*ctx.layout)
        for index, gradient in enumerate(gradients):
            half = _half(joint, index, ctx.groups)
            half.copy_(torch.unflatten(gradient, 1, half.shape[1:3]))
        backward = torch.ops.aten.convolution_backward
        of_images, _, _ = backward(joint, images, weight, None, *GEOMETRY, ctx.groups, [True, False, False])
        _, of_novel, _ = backward(gradients[1], images, novel, None, *GEOMETRY, ctx.groups, [False, True, False])
        return of_images, None, None, of_novel, None


class Case:
    """One hybrid unit with its images and the gradient of its output."""

    def __init__(self, channels: int, size: int, groups: int, batch: int, device: str, bfloat16: bool) -> None:
        generator = torch.Generator().manual_seed(0)
        self.dtype = torch.bfloat16 if bfloat16 else torch.float32
        self.base, self.novel = (
            nn.Conv2d(channels, channels, 3, padding=1, groups=groups, bias=bias).to(
                device,
                memory_format=torch.channels_last,  # type: ignore[call-overload]
            )
            for bias in (True, False)
        )
        self.base.requires_grad_(False)
        self.norm = nn.BatchNorm2d(channels).to(device)
        self.scale = torch.rand(channels, 1, 1, generator=generator).to(device, self.dtype)
        images, gradient = (torch.randn(batch, channels, size, size, generator=generator) for _ in range(2))
        self.images = images.to(device, self.dtype, memory_format=torch.channels_last).requires_grad_()
        self.gradient = gradient.to(device, self.dtype, memory_format=torch.channels_last)
        self.device = device

    def step(self, joint: bool) -> tuple[Tensor, ...]:
        """Run forward and backward; return output and gradients."""
        reduced = self.dtype == torch.bfloat16
        with torch.autocast(self.device, torch.bfloat16) if reduced else nullcontext():
            if joint:
                kernels = [value.to(self.dtype) for value in (self.base.weight, _bias(self.base), self.novel.weight)]
                outputs = JointConvolution.apply(self.images, *kernels, self.base.groups)  # type: ignore[no-untyped-call]
            else:
                outputs = self.base(self.images), self.novel(self.images)
            fused = torch.addcmul(outputs[0], self.scale, self.norm(outputs[1]))
        wanted = [self.images, self.novel.weight, self.norm.weight, self.norm.bias]
        return fused.detach(), *torch.autograd.grad(fused, wanted, self.gradient)

    def seconds(self, joint: bool) -> float:
        """Time one step."""
        self._wait()
        start = time.perf_counter()
        self.step(joint)
        self._wait()
        return time.perf_counter() - start

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def main() -> None:
    """Time every shape, print it, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    on_cpu = options.device == "cpu"
    torch.backends.cudnn.benchmark = True
    hardware = f"{os.cpu_count()} CPU cores" if on_cpu else torch.cuda.get_device_name()
    rows = []
    for bfloat16 in (False,) if on_cpu else (True, False):
        for channels, size, groups in SHAPES:
            for batch in (32,) if on_cpu else (32, 128, 512):
                rows.append(_row(Case(channels, size, groups, batch, options.device, bfloat16)))
                print(rows[-1], flush=True)
    record = {
        "command": f"python benchmarks/joint.py --device {options.device}",
        "commit": os.environ.get("COMMIT") or commit_of(RESULTS.parent),
        "hardware": hardware,
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "date": datetime.now(UTC).date().isoformat(),
        "rows": rows,
    }
    out = options.out or RESULTS / f"joint-{'cpu' if on_cpu else hardware.split()[-1].lower()}.json"
    out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _row(case: Case) -> dict[str, Any]:
    """Time both ways in turn; milliseconds, and the largest relative difference between them."""
    pairs = zip(case.step(joint=False), case.step(joint=True), strict=True)
    error = max(((a - b).abs().max() / a.abs().max().clamp(min=1e-12)).item() for a, b in pairs)
    times: dict[bool, list[float]] = {False: [], True: []}
    for repeat in range(REPEATS + 3):
        for joint in (False, True):
            seconds = case.seconds(joint)
            if repeat >= 3:
                times[joint].append(seconds * 1000)
    return {
        "precision": str(case.dtype).removeprefix("torch."),
        "channels": case.base.in_channels,
        "size": case.images.shape[-1],
        "groups": case.base.groups,
        "batch": len(case.images),
        "apart_ms": _spread(times[False]),
        "joint_ms": _spread(times[True]),
        "speed_up": statistics.median(times[False]) / statistics.median(times[True]),
        "error": error,
    }


def _spread(values: list[float]) -> dict[str, float]:
    quartiles = statistics.quantiles(values, n=4)
    return {"median": statistics.median(values), "first_quartile": quartiles[0], "third_quartile": quartiles[2]}


def _half(joint: Tensor, index: int, groups: int) -> Tensor:
    """View the base (0) or novel (1) channels of [N, 2 C, H, W] as [N, groups, C / groups, H, W]."""
    return torch.unflatten(joint, 1, (groups, 2, -1)).select(2, index)


def _bias(conv: nn.Conv2d) -> Tensor:
    assert conv.bias is not None
    return conv.bias


if __name__ == "__main__":
    main()
