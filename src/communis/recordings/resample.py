"""Bringing time series to another rate by polyphase filtering; what was missing stays missing."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np

from communis.recordings.recording import Array, Stream


def resampled(stream: Stream, rate: float) -> Stream:
    """The stream at `rate` Hz. The filter is symmetric, so nothing is shifted in time."""
    from scipy.signal import resample_poly

    ratio = Fraction(rate / stream.rate).limit_denominator(1000)
    if ratio == 1:
        return stream
    values = np.asarray(stream.values, np.float32)
    missing = ~np.isfinite(values)
    found = resample_poly(
        _bridged(values, missing), ratio.numerator, ratio.denominator, axis=0, padtype="line"
    )
    if missing.any():  # what the filter says about a gap is invented
        nearest = np.rint(np.arange(len(found)) / float(ratio)).astype(np.int64)
        found[missing[np.minimum(nearest, len(values) - 1)]] = np.nan
    return replace(stream, values=found.astype(np.float32), rate=rate)


def _bridged(values: Array, missing: Array) -> Array:
    """Gaps bridged by straight lines, so that the filter sees numbers; a channel that has none is
    0."""
    if not missing.any():
        return values
    bridged = values.copy()
    steps = np.arange(len(values))
    for channel in np.flatnonzero(missing.any(0)):
        gap = missing[:, channel]
        known = steps[~gap]
        bridged[gap, channel] = (
            np.interp(steps[gap], known, values[known, channel]) if len(known) else 0.0
        )
    return bridged
