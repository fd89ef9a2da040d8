"""Going back to an earlier stage of a network."""

import copy
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from inlay.branches.delta import dtype_name, fingerprint
from inlay.branches.history import History
from inlay.branches.hybrid import is_hybrid
from inlay.errors import InlayError

__all__ = ["rollback"]


def rollback(model: nn.Module, history: str | Path | History, stage: int) -> nn.Module:
    """Copy a network with every tensor that its history tracks as it was after a stage, bit for bit.

    Heads and whatever else the history does not track stay as they are in the network, as do devices, memory
    formats and the training mode, and buffers that are not part of the state dict. The history itself is not changed;
    see `History.truncate`.

    Args:
        model: Plain network that the history belongs to, at any stage; it is not changed.
        history: The history, or its folder.
        stage: Number of the stage; 0 is the network before the first merge.

    Raises:
        InlayError: If the network has branches or is another one than the history's, there is no such stage or
            no history, or a file of it is damaged.
    """
    if is_hybrid(model):
        raise InlayError("The network has branches; merge them with inlay.branches.merge before rolling back.")
    kept = history if isinstance(history, History) else History(history)
    state = kept.state(stage)
    _check_fit(state, model.state_dict(), kept.folder)
    earlier = copy.deepcopy(model)
    whole = earlier.state_dict()
    whole.update(state)
    earlier.load_state_dict(whole)
    loaded = earlier.state_dict()
    if fingerprint({name: loaded[name] for name in state}) != fingerprint(state):
        raise InlayError(
            f"The network does not take on stage {stage} of {kept.folder} bit for bit, as it shares or changes "
            f"tensors that the history holds apart; roll back the network that the history was recorded from."
        )
    return earlier


def _check_fit(state: Mapping[str, Tensor], own: Mapping[str, object], folder: Path) -> None:
    for name, tensor in state.items():
        found = own.get(name)
        if not isinstance(found, Tensor) and name.endswith(".gamma"):
            raise InlayError(
                f"The history in {folder} belongs to a folded network, and this one is not; fold it first: "
                f"inlay.branches.fold(model, example, gammas=...)."
            )
        if not isinstance(found, Tensor):
            raise _another_network(folder, f"has a tensor {name!r}")
        if found.shape != tensor.shape:
            raise _another_network(folder, f"has {name!r} of shape {list(tensor.shape)}, not {list(found.shape)}")
        if found.dtype != tensor.dtype:
            wanted = dtype_name(tensor.dtype)
            raise InlayError(
                f"The history in {folder} holds {name!r} in {wanted}, but in the network it is "
                f"{dtype_name(found.dtype)}; convert the network with .to(torch.{wanted}) first."
            )


def _another_network(folder: Path, what: str) -> InlayError:
    return InlayError(
        f"The history in {folder} belongs to another network, one that {what}; give that network, or its own history."
    )
