"""Values for strict JSON, which knows neither NaN nor Inf."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def strict(value: Any) -> Any:
    """The same with NaN and Inf as None."""
    if isinstance(value, Mapping):
        return {key: strict(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [strict(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
