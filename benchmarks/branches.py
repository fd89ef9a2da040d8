"""Measure branches on real networks: what they cost, how exact they are, which layers they leave out.

    python benchmarks/branches.py --networks small|full|gpu|NAME ... [--device cuda] [--batch 8] [--runs 30]

Times are seconds: medians over interleaved runs with the interquartile range as spread. Forward is in eval mode
without gradients. A training step is forward, backward and SGD over whatever is trainable: everything of original,
folded and merged network, the branches of the hybrid, the adapters of LoRA. A network that fails is recorded with its
error, and the rest go on. The file is written after each network; --skip-done goes on where it stopped.
"""

import argparse
import copy
import gc
import math
import re
import statistics
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inlay import branches
from inlay.branches.comparison import difference, full_precision_outputs
from inlay.branches.example import floating_outputs
from inlay.branches.stock import stock_state_dict
from inlay.engine.checkpoint import write_json
from inlay.errors import InlayError

# Python looks for modules in the folder of the script.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.branch_records import PRECISION, earlier, header
from benchmarks.networks import Network, full_networks, gpu_networks, small_networks, trained

RESULTS = Path(__file__).parent / "results"
# The first group that has a name gives the network.
GROUPS = {"full": full_networks, "gpu": gpu_networks, "small": small_networks}
LORA_RANK, WARM_UPS = 8, 2
# Adam moves every weight by about its rate in each step, however large the gradients of a network are.
CHECK_STEPS, CHECK_RATE = 3, 0.003
# Timed steps shall cost what they cost and leave the weights where they are.
TIMED_RATE = 1e-6


@dataclass(frozen=True)
class Task:
    """What a network is given and how its output is judged.

    Attributes:
        images: The batch, [N, 3, H, W].
        classifies: Whether outputs are logits [N, classes]; otherwise they are features.
    """

    images: Tensor
    classifies: bool

    @torch.no_grad()
    def forward(self, model: nn.Module) -> None:
        """Run a network without gradients."""
        model(self.images)

    def step(self, model: nn.Module, optimiser: torch.optim.Optimizer, autocast: bool = False) -> None:
        """Take one training step: cross-entropy of logits, sum of squares of features."""
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast(self.images.device.type, torch.bfloat16, enabled=autocast):
            output = floating_outputs(model(self.images))[0].float()
        labels = torch.arange(len(output), device=output.device) % output.shape[1]
        loss = F.cross_entropy(output, labels) if self.classifies else output.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()


def main() -> None:
    """Measure each network and write the file after each."""
    options = _parser().parse_args()
    try:
        if options.runs < 1 or options.batch < 2:
            raise InlayError("There must be at least 1 run and 2 images in a batch: write --runs 30 --batch 8.")
        if options.device == "cuda" and not torch.cuda.is_available():
            raise InlayError("torch finds no CUDA device; write --device cpu.")
        chosen, record = select(options.networks), header(options)
        device = "cpu" if options.device == "cpu" else record["hardware"].lower().removeprefix("nvidia ")
        out: Path = options.out or RESULTS / f"branches-{device.replace(' ', '-')}.json"
        done = earlier(out, record) if options.append or options.skip_done else {}
        out.parent.mkdir(parents=True, exist_ok=True)
        for network in chosen:
            key = (network.name, *_image(network))
            if options.skip_done and key in done and done[key]["error"] is None:
                continue
            found = done[key] = measure(network, options) | {"commit": record["commit"]}
            write_json(out, record | {"networks": list(done.values())})
            print(f"{network.name}: {found['error'] or 'measured'} ({found['seconds']:.0f} s)", flush=True)
    except InlayError as error:
        sys.exit(f"Error: {error}")


def select(words: Sequence[str]) -> list[Network]:
    """Return the networks of groups and names.

    Raises:
        InlayError: If there is no such network.
    """
    named = {network.name: network for group in reversed(GROUPS.values()) for network in group()}
    for word in words:
        if word not in GROUPS and word not in named:
            raise InlayError(f"There is no network {word!r}; write {', '.join(GROUPS)} or a name in networks.py.")
    return [network for word in words for network in (GROUPS[word]() if word in GROUPS else [named[word]])]


def measure(network: Network, options: argparse.Namespace) -> dict[str, Any]:
    """Measure one network as the command line says; "error" is None, or what stopped the measurement."""
    began = time.perf_counter()
    found: dict[str, Any] = {"name": network.name, "image": _image(network), "source": network.source, "error": None}
    torch.manual_seed(0)
    try:
        with warnings.catch_warnings():
            # Refusals are recorded, both ours and those of PEFT.
            warnings.simplefilter("ignore", UserWarning)
            _measure_into(found, network, options)
    except Exception as error:  # whatever a stranger's network raises
        found["error"] = _sentence(error)
    gc.collect()
    if options.device == "cuda":
        torch.cuda.empty_cache()
    return found | {"seconds": time.perf_counter() - began}


def _measure_into(found: dict[str, Any], network: Network, options: argparse.Namespace) -> None:
    layout = torch.channels_last if options.device == "cuda" else torch.contiguous_format
    images = network.example(options.batch).to(options.device, memory_format=layout)
    task = Task(images, classifies=network.source != "inlay")
    original = trained(network, torch.Generator().manual_seed(0))
    original.to(options.device, memory_format=layout)  # type: ignore[call-overload]  # torch's types lack the format
    models = _checked_models(found, network, original, task)
    found["parameters"] = {name: branches.count_parameters(model) for name, model in models.items()}
    found["trainable"] = {name: sum(map(torch.numel, _trainable(model))) for name, model in models.items()}
    found |= timings(models, task, options.runs, options.seconds_per_network)


def _checked_models(found: dict[str, Any], network: Network, original: nn.Module, task: Task) -> dict[str, nn.Module]:
    probe, generator, everything = task.images[:2], torch.Generator().manual_seed(0), branches.Targets(kinds="all")
    plans = {"default": branches.plan(original, probe), "all": branches.plan(original, probe, everything)}
    found["plan"] = {name: plan_counts(plan) for name, plan in plans.items()}
    found["targets"] = "default" if plans["default"].units else "all"
    targets = None if found["targets"] == "default" else everything

    folded = branches.fold(original, probe)
    hybrid = branches.attach(original, probe, targets=targets, generator=generator)
    found["attach_error"] = _distance(original, hybrid, probe)
    found["exact_start"] = _distance(folded, hybrid, probe) == 0
    optimiser = torch.optim.Adam(branches.branch_parameters(hybrid.train()), CHECK_RATE)
    for _ in range(CHECK_STEPS):
        task.step(hybrid, optimiser)
    hybrid.eval()
    found["movement"] = _distance(folded, hybrid, probe)
    report = branches.merge(hybrid, probe)
    found["merge_error"] = {"float32": report.relative_diff, "float64": report.relative_diff_float64}
    check_same_graph(folded, report.model)
    found |= {"same_graph": True, "stock": _stock(network, report.model, probe)}

    two_branches = branches.attach(original, probe, "imm", targets, generator=generator).requires_grad_(False)
    found["lora"], adapted = lora(original, [unit.name for unit in plans[found["targets"]].units], task)
    # Whoever went on without branches would train these two whole.
    plain = {"folded": folded.requires_grad_(True), "merged": report.model.requires_grad_(True)}
    models = {"original": original, "hybrid": hybrid} | plain
    return models | {"two branches": two_branches} | adapted


def plan_counts(plan: branches.Plan) -> dict[str, Any]:
    """Count the layers of a plan by what happens to them: by kind where there could be a branch, else by reason."""
    return {
        "branched": dict(Counter(unit.kind for unit in plan.units)),
        "frozen": dict(Counter(row.unit.kind for row in plan.having("frozen") if row.unit is not None)),
        "frozen_because": dict(Counter(row.why for row in plan.having("frozen"))),
        "refused": dict(Counter(row.why for row in plan.having("refused"))),
    }


def check_same_graph(folded: nn.Module, merged: nn.Module) -> None:
    """Refuse a merged network that is built otherwise than the folded base.

    Raises:
        InlayError: With the first module, parameter or buffer that differs.
    """
    for left, right in zip_longest(_graph(folded), _graph(merged)):
        if left != right:
            raise InlayError(f"The merged network has {right} where the folded base has {left}.")


def _graph(model: nn.Module) -> Iterator[tuple[object, ...]]:
    for name, module in model.named_modules(remove_duplicate=False):
        yield name, type(module), module.extra_repr()
    for name, tensor in model.state_dict(keep_vars=True).items():
        yield name, type(tensor), tensor.shape, tensor.dtype


def lora(original: nn.Module, names: Sequence[str], task: Task) -> tuple[dict[str, Any], dict[str, nn.Module]]:
    """Put PEFT's LoRA on copies of the named layers, as far as it can attach to and merge into them.

    Returns:
        What was found, and the networks with adapters and with merged adapters; none if they fail on the task.
    """
    try:
        peft = import_module("peft")
    except ImportError:
        return {"layers": None, "refused": {}, "note": "peft is not installed"}, {}

    def adapted(model: nn.Module, layers: Sequence[str]) -> Any:
        # A list would match every module whose name ends so.
        pattern = "|".join(re.escape(layer) for layer in layers)
        return peft.get_peft_model(copy.deepcopy(model), peft.LoraConfig(r=LORA_RANK, target_modules=pattern))

    taken, refused = [], Counter[str]()
    for name in names:
        try:
            adapted(nn.Sequential(original.get_submodule(name)), ["0"]).merge_and_unload()
            taken.append(name)
        except Exception as error:  # PEFT has no type of its own for layers that it cannot take
            refused[re.sub(r"groups=\d+", "groups=n", _sentence(error))] += 1
    found = {"layers": len(taken), "rank": LORA_RANK, "refused": dict(refused), "note": ""}
    try:
        models = {"LoRA": adapted(original, taken), "LoRA merged": adapted(original, taken).merge_and_unload()}
        task.forward(models["LoRA"])
    except Exception as error:  # no layer is left, or the network reads what an adapted layer does not have
        return found | {"note": _sentence(error)}, {}
    return found, models


def timings(models: Mapping[str, nn.Module], task: Task, runs: int, seconds: float | None) -> dict[str, Any]:
    """Time networks in turn, again and again.

    Args:
        models: Network by name; those with trainable parameters are timed in training, too.
        task: What they are given.
        runs: How often each is timed.
        seconds: Time after which no new round begins; None for no limit.

    Returns:
        The number of runs that were made, median and spread of "forward" and "training" in seconds by name, and on a
        GPU the peak memory of training in bytes by name: weights, buffers and whatever the step adds to them.
    """
    trainable = {name: _trainable(model) for name, model in models.items()}
    optimisers = {name: torch.optim.SGD(found, TIMED_RATE) for name, found in trainable.items() if found}
    for shift in range(WARM_UPS):
        list(_round(models, optimisers, task, shift))
    measured = optimisers if task.images.is_cuda else {}
    peaks = {name: _peak_memory(models[name], optimiser, task) for name, optimiser in measured.items()}
    times, began, made = defaultdict[tuple[str, str], list[float]](list), time.perf_counter(), 0
    while made < runs and (made == 0 or seconds is None or time.perf_counter() - began < seconds):
        for kind, name, taken in _round(models, optimisers, task, made):
            times[kind, name].append(taken)
        made += 1
    forward = {name: _spread(times["forward", name]) for name in models}
    training = {name: _spread(times["training", name]) for name in optimisers}
    return {"runs": made, "forward": forward, "training": training, "peak_memory": peaks}


def _round(
    models: Mapping[str, nn.Module], optimisers: Mapping[str, torch.optim.Optimizer], task: Task, shift: int
) -> Iterator[tuple[str, str, float]]:
    # Not always the same network comes first, behind whatever ran before the round.
    first = shift % len(models)
    order = [*models][first:] + [*models][:first]
    for name in order:
        models[name].eval()
        yield "forward", name, _seconds(task, partial(task.forward, models[name]))
    for name in (name for name in order if name in optimisers):
        models[name].train()
        yield "training", name, _seconds(task, partial(task.step, models[name], optimisers[name], task.images.is_cuda))


def _seconds(task: Task, work: Callable[[], None]) -> float:
    _wait(task)
    began = time.perf_counter()
    work()
    _wait(task)
    return time.perf_counter() - began


def _wait(task: Task) -> None:
    if task.images.is_cuda:
        torch.cuda.synchronize()


def _peak_memory(model: nn.Module, optimiser: torch.optim.Optimizer, task: Task) -> int:
    # Gradients of the other networks stay where they are, before and after.
    optimiser.zero_grad(set_to_none=True)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    task.step(model.train(), optimiser, autocast=True)
    _wait(task)
    own = sum(tensor.numel() * tensor.element_size() for tensor in (*model.parameters(), *model.buffers()))
    return own + torch.cuda.max_memory_allocated() - before


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    quartiles = statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else [seconds[0]] * 3
    return {"median": quartiles[1], "spread": quartiles[2] - quartiles[0]}


def _stock(network: Network, merged: nn.Module, probe: Tensor) -> dict[str, Any]:
    """Say whether the merged weights load into the stock architecture, and how far its outputs are off."""
    stock = network.stock()
    try:
        stock.load_state_dict(stock_state_dict(merged), strict=True)
    except (InlayError, RuntimeError) as error:
        return {"loads": False, "error": None, "why": _sentence(error)}
    return {"loads": True, "error": _distance(merged, stock.to(probe.device).eval(), probe), "why": ""}


def _distance(expected: nn.Module, actual: nn.Module, probe: Tensor) -> float:
    outputs = [full_precision_outputs(model, probe, "probe") for model in (expected, actual)]
    distance = difference(*outputs).relative
    if not math.isfinite(distance):
        raise InlayError("An output is not finite.")
    return distance


def _image(network: Network) -> list[int]:
    return list(network.example(1).shape[1:])


def _trainable(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _sentence(error: Exception) -> str:
    words = " ".join(str(error).split())[:300]
    return words if isinstance(error, InlayError) else f"{type(error).__name__}: {words}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", required=True, help="small, full, gpu, or names in networks.py")
    parser.add_argument("--device", choices=tuple(PRECISION), default="cpu")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--seconds-per-network", type=float, help="begin no new round of timing after this time")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/branches-<device>.json")
    parser.add_argument("--append", action="store_true", help="keep the other networks in the file")
    parser.add_argument("--skip-done", action="store_true", help="keep what is in the file, and measure what is not")
    return parser


if __name__ == "__main__":
    main()
