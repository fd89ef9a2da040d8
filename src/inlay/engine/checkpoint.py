"""Durable files: tensors with facts, JSON, and the state of a training.

A file is written beside its final name, forced to the disk and only then renamed, so that a reader finds the
old file or the new one and never a part of either, whatever moment the writer was killed at.
"""

import errno
import glob
import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from inlay.errors import InlayError

__all__ = [
    "JsonObject",
    "read_facts",
    "read_json",
    "read_tensors",
    "remove_leftovers",
    "restore_training_state",
    "sync_folder",
    "training_state",
    "write_json",
    "write_tensors",
    "write_whole",
    "writing",
]

JsonObject: TypeAlias = dict[str, Any]
"""What a JSON object becomes: names to None, booleans, numbers, text, lists and further objects."""

_FACTS = "facts"
_TOKEN_CHARACTERS = 8
_FULL = (errno.ENOSPC, errno.EDQUOT)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], facts: JsonObject) -> None:
    """Write one safetensors file that carries facts in its header, whole or not at all.

    The same tensors and facts give the same bytes. Tensors of any device and layout are stored contiguously,
    and those that share memory are stored apart.

    Args:
        path: File to write or to replace.
        tensors: Any tensors by name.
        facts: What JSON can hold, without NaN and infinities.

    Raises:
        InlayError: If the file cannot be written; what was there before is untouched.
        ValueError: If the facts hold a number that is not finite.
    """
    header = json.dumps(facts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    apart = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }
    write_whole(path, save(apart, metadata={_FACTS: header}))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], JsonObject]:
    """Read a file of `write_tensors`.

    Args:
        path: File to read.

    Returns:
        The tensors by name, contiguous on the CPU, and the facts.

    Raises:
        InlayError: If the file is missing, damaged or not of inlay.
    """
    with _reading(path) as file:
        # The tensors of safe_open look into the file, and would change or fault if the file did.
        return {name: file.get_tensor(name).clone() for name in file.keys()}, _facts(file)  # noqa: SIM118


def read_facts(path: Path) -> JsonObject:
    """Read the facts of a file of `write_tensors` alone, which is quick; the rest is as for `read_tensors`."""
    with _reading(path) as file:
        return _facts(file)


def write_json(path: Path, value: Any) -> None:
    """Write one JSON file, whole or not at all.

    Args:
        path: File to write or to replace.
        value: What JSON can hold, without NaN and infinities.

    Raises:
        InlayError: If the file cannot be written; what was there before is untouched.
        ValueError: If the value holds a number that is not finite.
    """
    write_whole(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Args:
        path: File to read.

    Returns:
        The value in it.

    Raises:
        InlayError: If the file is missing or not JSON.
    """
    try:
        return _from_json(path.read_bytes())
    except OSError as error:
        raise _unreadable(path, error) from error
    except (ValueError, RecursionError) as error:
        raise _damaged(path) from error


def training_state(
    modules: Mapping[str, nn.Module], optimizer: torch.optim.Optimizer
) -> tuple[dict[str, Tensor], JsonObject]:
    """Collect what a training needs to go on where it stands.

    Args:
        modules: Everything that the training changes, by names without a dot.
        optimizer: The optimiser, whose learning rates are plain numbers.

    Returns:
        The live tensors (write them before the next step), named `module.<name>.<key>` and
        `optimizer.<parameter>.<key>`, and the facts: learning rates, and what of the optimiser's state is no
        tensor.

    Raises:
        ValueError: If the name of a module has a dot.
    """
    tensors = _module_tensors(modules)
    numbers: dict[str, JsonObject] = {}
    for index, parameter in enumerate(_parameters(optimizer)):
        if parameter not in optimizer.state:
            continue
        state = optimizer.state[parameter]
        numbers[str(index)] = {key: value for key, value in state.items() if not isinstance(value, Tensor)}
        for key, value in state.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{key}"] = value
    rates = [float(group["lr"]) for group in optimizer.param_groups]
    return tensors, {"learning_rates": rates, "optimizer": numbers}


def restore_training_state(
    modules: Mapping[str, nn.Module],
    optimizer: torch.optim.Optimizer,
    tensors: Mapping[str, Tensor],
    facts: JsonObject,
) -> None:
    """Put a collected state back into modules and optimiser built as they were.

    Parameters and buffers are filled in place, so that the optimiser still holds them, and keep their memory
    format; the optimiser's tensors get the memory format of their parameters. Nothing changes on an error.

    Args:
        modules: The modules by the names they had.
        optimizer: An optimiser of the same kind over the same parameters in the same order.
        tensors: As returned by `training_state`.
        facts: As returned by `training_state`.

    Raises:
        InlayError: If the state is that of other modules or of another optimiser.
        ValueError: If the name of a module has a dot.
    """
    _check_fit(_module_tensors(modules), optimizer, tensors, facts)
    parameters = _parameters(optimizer)
    states: dict[int, dict[str, Any]] = {int(i): dict(numbers) for i, numbers in facts["optimizer"].items()}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".", 2)
            states[int(index)][key] = _laid_out_as(parameters[int(index)], tensor)
    groups = [
        {**group, "lr": rate}
        for group, rate in zip(optimizer.state_dict()["param_groups"], facts["learning_rates"], strict=True)
    ]
    optimizer.load_state_dict({"state": states, "param_groups": groups})
    for name, module in modules.items():
        module.load_state_dict({key: tensors[f"module.{name}.{key}"] for key in module.state_dict()})


def remove_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove the temporary files of writers that were killed.

    Args:
        folder: Where to look; nobody else may be writing there.
        name: Final name of the file whose leftovers are meant; None means every file's.
    """
    target = "*" if name is None else glob.escape(name)
    for leftover in folder.glob(f".{target}.{'?' * _TOKEN_CHARACTERS}.tmp"):
        leftover.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to the disk, as a rename is durable only after that.

    Args:
        folder: The folder.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals to write into sentences for the user.

    Args:
        path: What is being written.

    Raises:
        InlayError: In place of an OSError.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            message = f"The disk is full: {path} was not written; free some space and repeat the command."
        else:
            reason = error.strerror or str(error)
            message = f"{path} cannot be written ({reason}); choose a folder that you can write to."
        raise InlayError(message) from error


@contextmanager
def _reading(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except OSError as error:
        raise _unreadable(path, error) from error
    except (SafetensorError, ValueError, KeyError, RecursionError) as error:
        raise _damaged(path) from error


def _facts(file: Any) -> JsonObject:
    facts = _from_json((file.metadata() or {})[_FACTS])
    if not isinstance(facts, dict):
        raise ValueError("facts are a JSON object")
    return facts


def write_whole(path: Path, content: bytes) -> None:
    """Write one file, whole or not at all.

    Args:
        path: File to write or to replace.
        content: Its bytes.

    Raises:
        InlayError: If the file cannot be written; what was there before is untouched.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(_TOKEN_CHARACTERS // 2)}.tmp")
    with writing(path):
        remove_leftovers(path.parent, path.name)
        try:
            with open(temporary, "xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def _module_tensors(modules: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    dotted = [name for name in modules if "." in name]
    if dotted:
        raise ValueError(f"the name of a module must have no dot, not {dotted[0]!r}")
    return {
        f"module.{name}.{key}": tensor
        for name, module in modules.items()
        for key, tensor in module.state_dict().items()
    }


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _check_fit(
    own: Mapping[str, Tensor],
    optimizer: torch.optim.Optimizer,
    tensors: Mapping[str, Tensor],
    facts: JsonObject,
) -> None:
    expected = {name: (tensor.shape, tensor.dtype) for name, tensor in own.items()}
    saved = {name: (t.shape, t.dtype) for name, t in tensors.items() if name.startswith("module.")}
    stateful = {name.split(".")[1] for name in tensors if name.startswith("optimizer.")}
    indices = {str(index) for index in range(len(_parameters(optimizer)))}
    rates, numbers = facts.get("learning_rates"), facts.get("optimizer")
    fits = (
        saved == expected
        and isinstance(rates, list)
        and len(rates) == len(optimizer.param_groups)
        and isinstance(numbers, dict)
        and all(isinstance(each, dict) for each in numbers.values())
        and stateful <= numbers.keys() <= indices
    )
    if not fits:
        raise InlayError(
            "The saved state of the training is that of another network or optimiser; repeat the command "
            "with the settings it was begun with, or begin again."
        )


def _laid_out_as(parameter: Tensor, saved: Tensor) -> Tensor:
    # On the CPU: the optimiser itself decides, when it loads a tensor, which device that tensor belongs on.
    if saved.shape != parameter.shape:
        return saved.clone()
    return torch.empty_like(parameter, dtype=saved.dtype, device="cpu").copy_(saved)


def _from_json(text: str | bytes) -> Any:
    return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    # Digits such as 1e999 are JSON, but no number that inlay has written.
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits} is too large")
    return number


def _unreadable(path: Path, error: OSError) -> InlayError:
    # The errors of safetensors carry only a text.
    reason = error.strerror or ("No such file" if isinstance(error, FileNotFoundError) else str(error))
    return InlayError(f"{path} cannot be read ({reason}); give a file that inlay has written.")


def _damaged(path: Path) -> InlayError:
    return InlayError(
        f"{path} is damaged or was not written by inlay; restore it from a copy, or delete it to begin again."
    )
