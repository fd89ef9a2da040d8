import dataclasses
import re
from collections.abc import Iterator
from typing import Any, get_type_hints

import pytest

from inlay import settings
from inlay.settings import Settings


def _classes(cls: type[Any] = Settings) -> Iterator[type[Any]]:
    yield cls
    for hint in get_type_hints(cls).values():
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            yield from _classes(hint)


CLASSES = sorted(set(_classes()), key=lambda cls: cls.__name__)


def test_every_class_of_settings_is_public() -> None:
    public = [getattr(settings, name) for name in settings.__all__]
    assert {thing for thing in public if isinstance(thing, type)} == set(CLASSES)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_docstring_names_every_field_in_order(cls: type[Any]) -> None:
    attributes = (cls.__doc__ or "").partition("Attributes:")[2]
    described = re.findall(r"^ {8}(\w+): \S", attributes, flags=re.MULTILINE)
    assert described == [field.name for field in dataclasses.fields(cls)]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_settings_cannot_be_changed_in_place(cls: type[Any]) -> None:
    field = dataclasses.fields(cls)[0].name
    instance = cls()
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(instance, field, None)
