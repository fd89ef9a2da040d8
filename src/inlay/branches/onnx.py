"""Networks as ONNX files whose outputs are checked."""

import importlib
import logging
import os
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from inlay.branches.checks import check_finite
from inlay.branches.comparison import Difference, difference, full_precision_outputs
from inlay.branches.example import Example, floating_outputs, tensors_in
from inlay.branches.hybrid import hybrid_units
from inlay.engine.checkpoint import sync_folder, writing
from inlay.errors import InlayError

__all__ = ["OnnxReport", "export_onnx"]

_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
# The file format ends at 2 GiB; what is left is for the graph.
_LARGEST_BYTES = 2_000_000_000


@dataclass(frozen=True)
class OnnxReport:
    """What was exported, and how exactly it follows the network.

    Attributes:
        path: The file.
        max_abs_diff: max |Δ| between the outputs of torch and onnxruntime.
        relative_diff: max |Δ| / max(1, max |output|).
        tolerance: Largest relative difference that was allowed.
        input_names: Names of the inputs, in order.
        output_names: Names of the outputs, in order.
        opset: Version of the ONNX operators.
    """

    path: Path
    max_abs_diff: float
    relative_diff: float
    tolerance: float
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    opset: int


def export_onnx(
    model: nn.Module, example: Example, path: str | Path, *, tolerance: float = 1e-4, dynamic_batch: bool = True
) -> OnnxReport:
    """Write a network as one ONNX file, after comparing its outputs in onnxruntime with those of torch.

    The inputs are the tensors of the example, named "input", or "input_0" and so on for a tuple, or as in a mapping;
    other values of the example become part of the graph. The outputs are the floating tensors that the network
    returns, in order, named "output", or "output_0" and so on. Branches that can be merged are
    refused, as a forgotten merge would double the cost of the file; those of other gates are exported.

    Args:
        model: Any network in eval mode; it is not changed.
        example: What the network accepts; outputs are compared on it.
        path: The file, which is replaced if it exists, and left alone if anything fails.
        tolerance: Largest relative difference max |Δ| / max(1, max |output|) allowed.
        dynamic_batch: Whether the file accepts any batch size, as the first dimension of every input; outputs are
            then compared for a second batch size, too.

    Raises:
        InlayError: If a package is missing, the network has branches that can be merged, is in training mode or over
            2 GB, cannot be exported, gives other outputs in onnxruntime, or the file cannot be written.
    """
    target = Path(path)
    _check_packages()
    _check(model, target)
    inputs = _inputs(example, dynamic_batch)
    trials = [inputs, {name: _other_batch(tensor) for name, tensor in inputs.items()}] if dynamic_batch else [inputs]
    expected = [_torch_outputs(model, example, trial) for trial in trials]
    program = _exported(model, example, inputs, len(expected[0]), dynamic_batch)
    content = program.model_proto.SerializeToString()
    session = _session(content)
    actual = [_onnx_outputs(session, trial) for trial in trials]
    found = _compared(expected, actual, tolerance)
    _write_whole(target, content)
    return OnnxReport(
        path=target,
        max_abs_diff=found.absolute,
        relative_diff=found.relative,
        tolerance=tolerance,
        input_names=tuple(inputs),
        output_names=_output_names(len(expected[0])),
        opset=program.model.opset_imports[""],
    )


class _Flat(nn.Module):
    """A network that takes the tensors of its example in order and returns its floating outputs as a tuple."""

    def __init__(self, model: nn.Module, example: Example) -> None:
        super().__init__()
        self.model = model
        self.example = example

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        given = _with_tensors(self.example, tensors)
        if isinstance(given, Mapping):
            return tuple(floating_outputs(self.model(**given)))
        return tuple(floating_outputs(self.model(*given) if isinstance(given, tuple) else self.model(given)))


def _check_packages() -> None:
    for package in _PACKAGES:
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise InlayError(f"Export to ONNX needs the package {package}; write pip install 'inlay[onnx]'.") from error


def _check(model: nn.Module, target: Path) -> None:
    if any(unit.gate.mergeable for unit in hybrid_units(model).values()):
        raise InlayError("The network has branches; merge them with inlay.branches.merge first.")
    if any(module.training for module in model.modules()):
        raise InlayError("The network is in training mode; call model.eval() first.")
    if not target.parent.is_dir() or target.is_dir():
        raise InlayError(f"{target} cannot be written; give the name of a file in a folder that exists.")
    size = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    if size > _LARGEST_BYTES:
        raise InlayError(
            f"The weights take {size / 1e9:.1f} GB, and an ONNX file holds 2 GB; export the network in half precision "
            f"(model.half(), with a larger tolerance) or in parts."
        )
    check_finite(model, "load weights from before training diverged")


def _inputs(example: Example, dynamic_batch: bool) -> dict[str, Tensor]:
    """Return the tensors of an example by the names that they get as inputs."""
    if isinstance(example, Tensor):
        named: dict[str, object] = {"input": example}
    elif isinstance(example, Mapping):
        named = dict(example)
    else:
        named = {f"input_{index}": value for index, value in enumerate(example)}
    inputs = {name: value for name, value in named.items() if isinstance(value, Tensor)}
    if len(list(tensors_in(example))) != len(inputs) or not inputs:
        raise InlayError("The inputs of an ONNX file are tensors; pass them as such, not in lists or mappings.")
    unfit = [name for name, tensor in inputs.items() if tensor.dtype == torch.bfloat16]
    if unfit:
        raise InlayError(f"Input {unfit[0]!r} is bfloat16, which onnxruntime does not take; call model.float() first.")
    sizes = {tuple(tensor.shape[:1]) for tensor in inputs.values()}
    if dynamic_batch and (len(sizes) > 1 or () in sizes or (0,) in sizes):
        raise InlayError("The inputs have no batch dimension in common; write dynamic_batch=False.")
    return inputs


def _with_tensors(example: Example, tensors: Iterable[Tensor]) -> Example:
    """Return an example with other tensors in the places of its own."""
    given = iter(tensors)
    if isinstance(example, Tensor):
        return next(given)
    if isinstance(example, Mapping):
        return {name: next(given) if isinstance(value, Tensor) else value for name, value in example.items()}
    return tuple(next(given) if isinstance(value, Tensor) else value for value in example)


def _other_batch(tensor: Tensor) -> Tensor:
    """Return one image of several, or three copies of one image."""
    return tensor[:1] if len(tensor) > 1 else torch.cat([tensor] * 3)


def _torch_outputs(model: nn.Module, example: Example, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    given = _with_tensors(example, inputs.values())
    return [tensor.cpu() for tensor in full_precision_outputs(model, given, "example")]


def _output_names(count: int) -> tuple[str, ...]:
    return ("output",) if count == 1 else tuple(f"output_{index}" for index in range(count))


def _exported(
    model: nn.Module, example: Example, inputs: Mapping[str, Tensor], outputs: int, dynamic_batch: bool
) -> torch.onnx.ONNXProgram:
    tensors, shapes = tuple(inputs.values()), None
    if dynamic_batch:
        # A size of 1 would be taken for a constant.
        tensors = tuple(tensor if len(tensor) > 1 else torch.cat([tensor, tensor]) for tensor in tensors)
        shapes = (tuple({0: torch.export.Dim("batch")} for _ in tensors),)
    try:
        # With gradients, the exporter chooses attention kernels that it cannot express.
        with torch.no_grad(), _quiet():
            program = torch.onnx.export(
                _Flat(model, example).eval(),
                tensors,
                input_names=list(inputs),
                output_names=list(_output_names(outputs)),
                dynamic_shapes=shapes,
                dynamo=True,
                verbose=False,
            )
    except Exception as error:  # whatever a stranger's network makes the exporter raise
        raise InlayError(
            f"The network cannot be exported to ONNX; replace what the exporter names, or try dynamic_batch=False "
            f"({_reason(error)})."
        ) from error
    assert program is not None
    return program


def _session(content: bytes) -> Any:
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors only
    try:
        return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has no public base class of its errors
        raise _unfit(error) from error


def _onnx_outputs(session: Any, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    arrays = {wanted.name: inputs[wanted.name].detach().cpu().numpy() for wanted in session.get_inputs()}
    try:
        return [torch.from_numpy(array) for array in session.run(None, arrays)]
    except Exception as error:  # onnxruntime has no public base class of its errors
        raise _unfit(error) from error


def _unfit(error: Exception) -> InlayError:
    return InlayError(
        f"onnxruntime does not run the exported network; export it in float32, or try dynamic_batch=False "
        f"({_reason(error)})."
    )


def _compared(expected: list[list[Tensor]], actual: list[list[Tensor]], tolerance: float) -> Difference:
    left = [tensor for trial in expected for tensor in trial]
    right = [tensor for trial in actual for tensor in trial]
    if [tensor.shape for tensor in left] != [tensor.shape for tensor in right]:
        raise InlayError("The exported network gives outputs of other shapes than torch; try dynamic_batch=False.")
    found = difference(left, right)
    if not found.relative <= tolerance:
        raise InlayError(
            f"The exported network differs from the network by {found.relative:.1e} (relative; {tolerance:.0e} is "
            f"allowed), so nothing was written; check that it is deterministic in eval mode, or set tolerance."
        )
    return found


def _reason(error: BaseException) -> str:
    """Return the message of the first error that led to this one, as a single line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


@contextmanager
def _quiet() -> Iterator[None]:
    # The exporter reports operators of packages that are not installed, and its own use of deprecated functions.
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _write_whole(path: Path, content: bytes) -> None:
    with writing(path), tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        unfinished = Path(folder) / path.name
        with open(unfinished, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
        sync_folder(path.parent)
