"""Values for strict JSON, which has neither NaN nor Inf."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def strict(value: Any) -> Any:
    """Returns the value with None in place of NaN and Inf."""
    if isinstance(value, Mapping):
        return {key: strict(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [strict(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
