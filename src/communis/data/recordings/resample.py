"""Resampling of time series by polyphase filtering; missing values stay missing."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np

from communis.core.arrays import Array
from communis.core.errors import CommunisError
from communis.data.recordings.recording import Stream

EDGE = 1e-6  # tolerance in samples: positions are quotients, with rounding errors


def resampled(stream: Stream, rate: float) -> Stream:
    """Returns the stream at `rate` Hz. The filter is symmetric, so nothing is shifted in time."""
    ratio = Fraction(rate / stream.rate).limit_denominator(1000)
    if not ratio:
        raise CommunisError(
            f"a stream of {stream.rate:g} Hz cannot be resampled to {rate:g} Hz; the ratio of the "
            "rates must be more than 1 / 2000"
        )
    if ratio == 1:
        return stream
    from scipy.signal import resample_poly  # the import takes a second

    values = np.asarray(stream.values, np.float32)
    missing = ~np.isfinite(values)
    filtered = resample_poly(
        _bridged(values, missing), ratio.numerator, ratio.denominator, axis=0, padtype="line"
    )
    if missing.any():  # values of the filter within a gap are not measurements
        filtered[_unknown(missing, len(filtered), float(ratio))] = np.nan
    return replace(stream, values=filtered.astype(np.float32), rate=rate)


def _unknown(missing: Array, count: int, ratio: float) -> Array:
    """Returns (count, channels) bool: true if no sample was sensed within half a new step of a new
    sample."""
    reach = max(0.5, 0.5 / ratio)
    position = np.arange(count) / ratio
    first = np.clip(np.ceil(position - reach - EDGE), 0, len(missing) - 1).astype(np.int64)
    last = np.clip(np.floor(position + reach + EDGE), 0, len(missing) - 1).astype(np.int64)
    sensed_before = np.cumsum(np.vstack([np.zeros((1, missing.shape[1]), bool), ~missing]), 0)
    return np.asarray(sensed_before[last + 1] == sensed_before[first])


def _bridged(values: Array, missing: Array) -> Array:
    """Returns the values with gaps interpolated, so that the filter has numbers everywhere; a
    channel without any value is 0."""
    if not missing.any():
        return values
    bridged = values.copy()
    steps = np.arange(len(values))
    for channel in np.flatnonzero(missing.any(0)):
        gap = missing[:, channel]
        known = steps[~gap]
        if len(known):
            bridged[gap, channel] = np.interp(steps[gap], known, values[known, channel])
        else:
            bridged[gap, channel] = 0.0
    return bridged
