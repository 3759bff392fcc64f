"""Small pickles with the arrays that the owners' training code of RELI11D reads."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np

SHAPES = {
    "point_clouds_2D": (512, 3),
    "img_feature_ori": (2048,),
    "event_feature": (2048,),
    "joint3d_with_trans_2D": (24, 3),
    "joint3d_wo_trans_2D": (24, 3),
    "trans_2D": (3,),
    "pose_2D": (72,),
    "shape": (10,),
    "joint2d": (24, 2),
    "bbox": (4,),
}


def values(key: str, segments: int) -> np.ndarray:
    """Every number is its place in the array, but for a thousandth that tells the arrays apart."""
    shape = (segments, 16, *SHAPES[key])
    return (
        np.arange(np.prod(shape), dtype=np.float64).reshape(shape) + list(SHAPES).index(key) / 1e3
    )


def part(segments: int) -> dict[str, object]:
    images = [[f"{s:06d}/{f:02d}.jpg" for f in range(16)] for s in range(segments)]
    return {"img": images, **{key: values(key, segments) for key in SHAPES}}


def write(path: Path, found: object, protocol: int = 4) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(found, protocol))
    return path
