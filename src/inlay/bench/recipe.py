"""From a run to its settings: preset, protocol, schedule, then the user's changes."""

import dataclasses
import json
from typing import Any

from inlay.bench.datasets import benchmark
from inlay.bench.plan import Run
from inlay.bench.schedule import BASE_PRESETS, base_changes, published_stage_length, stage_length
from inlay.bench.systems import system
from inlay.methods import check_settings
from inlay.settings import Settings, TrainingSettings, preset

__all__ = ["base_name", "base_text", "changes_of", "schedule_text", "settings_of"]

_VIEWS = ("first_view", "second_view")


def settings_of(run: Run) -> Settings:
    """Return the settings of all stages of a run.

    Raises:
        InlayError: If a preset, a setting or what it names does not exist.
    """
    settings = _start(run).changed(changes_of(run))
    check_settings(settings)
    return settings


def changes_of(run: Run) -> dict[str, Any]:
    """Return by dotted path what a run changes in its preset and in the base stage of its recipe."""
    data, row = benchmark(run.dataset), system(run.system)
    changes: dict[str, Any] = {"base.view": data.base_view}
    if not run.full_length:
        changes |= base_changes(run.base, run.dataset)
    if not row.supervised:
        changes |= _protocol(run)
        if not row.own_length:
            changes |= published_stage_length(data, run.steps) if run.full_length else stage_length(run.dataset)
    return {**changes, **row.changes, **run.changes}


def _start(run: Run) -> Settings:
    own = preset(run.preset or system(run.system).preset)
    return dataclasses.replace(own, base=preset(BASE_PRESETS[run.base]).base)


def _protocol(run: Run) -> dict[str, Any]:
    """Weak views become those of the data set; strong views and terms that a system does not use stay as they are."""
    data, own, keeps = benchmark(run.dataset), _start(run).to_json(), system(run.system).keeps
    views = {view: data.stage_view for view in _VIEWS if own[view].startswith("weak")}
    used = {part for part in own if part not in keeps and isinstance(own[part], dict) and own[part].get("weight")}
    return {**views, **{path: value for path, value in data.numbers.items() if path.split(".")[0] in used}}


def base_name(run: Run) -> str:
    """Name the base stage of a run; runs start from the same one if they have the same name for it."""
    data = benchmark(run.dataset)
    classes = data.classes if system(run.system).supervised else data.cut(run.steps)[0]
    facts = [run.dataset, run.backbone, run.seed, run.split_seed, classes, settings_of(run).to_json()["base"]]
    return json.dumps(facts, sort_keys=True)


def base_text(settings: Settings) -> str:
    """Say in words how the base stage is trained."""
    base = settings.base
    losses = f"cross-entropy {base.cross_entropy:g} on {base.view} views"
    if base.contrastive:
        losses += f", contrastive {base.contrastive:g} on {base.contrastive_view} views at {base.temperature:g}"
    if base.rotation:
        losses += f", quarter turns {base.rotation:g}"
    return f"{losses}; {schedule_text(base.training)}"


def schedule_text(training: TrainingSettings) -> str:
    """Say in words how long and with what learning rate is trained."""
    decay = f" at {', '.join(f'{at:g}' for at in training.decay_at)}" if training.schedule == "step" else ""
    return (
        f"{training.epochs} epochs, batch {training.batch}, learning rate {training.learning_rate:g}, "
        f"{training.schedule}{decay}, weight decay {training.weight_decay:g}"
    )
