"""The command that lists the networks."""

from inlay.backbones import FORMS, names
from inlay.backbones.pretrained import PRETRAINED
from inlay.cli.shown import console

__all__ = ["backbones"]


def backbones() -> None:
    """List the networks that --backbone takes.

    Example: inlay backbones
    """
    rows = {name: "from scratch" for name in names()}
    rows |= dict.fromkeys(PRETRAINED, 'pretrained on ImageNet, without network: pip install "inlay[pretrained]"')
    rows["resnet8x2, …"] = "resnet8, resnet20 or resnet32, as many times wider as the number says"
    for spelling, what in FORMS.items():
        library = spelling.partition(":")[0]
        rows[spelling] = f'{what}: pip install "inlay[{library}]"'
    width = 2 + max(map(len, rows))
    for name, what in rows.items():
        console.print(f"{name:<{width}}{what}")
