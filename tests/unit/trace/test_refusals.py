"""Models that cannot be forecast are refused by name; nothing else comes out of a trace but a program."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from transformers import LlamaConfig, MixtralConfig

from raysweep.errors import NotForecastError
from raysweep.setting import StepSetting
from raysweep.step.training import TrainingStep
from raysweep.trace.build import model_program


def test_a_mixture_of_experts_is_refused_by_name() -> None:
    config = MixtralConfig(hidden_size=64, num_hidden_layers=1, num_local_experts=4)
    with pytest.raises(NotForecastError, match="does not model mixture-of-experts layers"):
        model_program("m", config, StepSetting(), [16])


def test_whatever_a_model_raises_becomes_one_refusal(
    tiny: Callable[..., LlamaConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AttributeError("no such part")

    monkeypatch.setattr(TrainingStep, "__init__", fail)
    with pytest.raises(NotForecastError, match=r"type 'llama' without a device \(AttributeError: no such part\)"):
        model_program("m", tiny(), StepSetting(), [16])
