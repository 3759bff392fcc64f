"""What came out: finished runs, comparisons, verdicts, reports, attacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from communis.results.experiment import Results

__all__ = ["Results"]


def __getattr__(name: str) -> Any:
    """Imports `Results` on first access: it needs pandas, which some commands do not."""
    if name != "Results":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from communis.results.experiment import Results

    return Results
