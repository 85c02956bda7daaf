"""Presets: the settings that `train` uses where the caller states none."""

from typing import Literal, NamedTuple, get_args

from .._repr import short_repr
from ..machines.dual import Dual
from ..machines.fixed_size import FixedSize
from ..search.recursive import Recursive
from ..search.strategies import Profile
from .plan import default_prototypes
from .settings import Settings, Stated

Preset = Literal["fast", "balanced", "accurate"]
TUNED_WITH = {"balanced": 1000, "accurate": 2000}  # sampled rows that tune a machine of all rows
TUNED_PROTOTYPES = 500  # prototypes that tune a machine of more prototypes
PAPERS = Settings(FixedSize(), "rbf", Profile(), "standard")
ADVICE = {
    "fast": "one lengthscale; 'balanced' learns a metric, in some ten times the time",
    "balanced": "'accurate' tunes with more rows, in some five times the time",
    "accurate": "no preset takes longer",
}


class Situation(NamedTuple):
    """The facts about a run that decide which settings it can have."""

    n: int | None  # number of rows; None for a stream and on a mesh
    by_folds: bool = False  # whether the run must be validated on folds
    memory: int | None = None  # bytes that may be used; None for the free memory

    __repr__ = short_repr


def completed(
    stated: Stated, preset: Preset | None, situation: Situation
) -> tuple[Settings, Preset | None]:
    """Return the stated settings completed by a preset, and the name of the preset.

    If no preset is stated, a stated method, a stream and a mesh get the settings of the papers. The
    name is then None. In all other cases the default preset is "balanced". For an unknown preset,
    or a preset other than "fast" for a stream or a mesh, raise a `ValueError`.
    """
    if preset is not None and preset not in get_args(Preset):
        raise ValueError(f"preset: expected one of {get_args(Preset)}, got {preset!r}")
    if situation.n is None and preset not in (None, "fast"):
        raise ValueError(f"preset: expected 'fast' for a stream or a mesh, got {preset!r}")
    if preset is None and (stated.method is not None or situation.n is None):
        return stated.completed(PAPERS), None
    preset = preset or "balanced"
    settings = PAPERS if preset == "fast" else _metric_settings(preset, situation)
    return stated.completed(settings), preset


def _metric_settings(preset: Preset, situation: Situation) -> Settings:
    """Return the settings of "balanced" or "accurate", for the number of rows and the memory."""
    n, by_folds, memory = situation
    assert n is not None
    m = default_prototypes(n, preset, memory, by_folds=by_folds)
    if m == "all":
        return Settings(Dual(tuned_with=TUNED_WITH[preset]), "auto", Recursive(), "auto")
    tuned_with = TUNED_PROTOTYPES if m > TUNED_PROTOTYPES else None
    return Settings(FixedSize(m, tuned_with=tuned_with), "auto", "auto", "auto")
