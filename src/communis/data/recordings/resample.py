"""Bringing time series to another rate by polyphase filtering; what was missing stays missing."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np

from communis.core.arrays import Array
from communis.core.errors import CommunisError
from communis.data.recordings.recording import Stream

EDGE = 1e-6  # of a sample: places are quotients, and off by some 1e-16 of the recording's length


def resampled(stream: Stream, rate: float) -> Stream:
    """The stream at `rate` Hz. The filter is symmetric, so nothing is shifted in time."""
    ratio = Fraction(rate / stream.rate).limit_denominator(1000)
    if not ratio:
        raise CommunisError(f"a stream of {stream.rate:g} Hz cannot be brought to {rate:g} Hz")
    if ratio == 1:
        return stream
    from scipy.signal import resample_poly  # takes a second to import

    values = np.asarray(stream.values, np.float32)
    missing = ~np.isfinite(values)
    found = resample_poly(
        _bridged(values, missing), ratio.numerator, ratio.denominator, axis=0, padtype="line"
    )
    if missing.any():  # what the filter says about a gap is invented
        found[_unknown(missing, len(found), float(ratio))] = np.nan
    return replace(stream, values=found.astype(np.float32), rate=rate)


def _unknown(missing: Array, count: int, ratio: float) -> Array:
    """(count, channels) bool: no sample was sensed within half a new step of a new sample."""
    reach = max(0.5, 0.5 / ratio)
    place = np.arange(count) / ratio
    first = np.clip(np.ceil(place - reach - EDGE), 0, len(missing) - 1).astype(np.int64)
    last = np.clip(np.floor(place + reach + EDGE), 0, len(missing) - 1).astype(np.int64)
    known = np.cumsum(np.vstack([np.zeros((1, missing.shape[1]), bool), ~missing]), 0)
    return np.asarray(known[last + 1] == known[first])


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
