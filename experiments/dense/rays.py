"""Rays against spheres, boxes and planes: distances and normals, exact up to rounding.

S scenes are traced at once, each with R rays and n surfaces of a kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

import torch
from torch import Tensor

_NEAR: Final = 1e-9
"""Surfaces nearer than this along a ray are the one that it starts from."""


class Hits(NamedTuple):
    """Where rays first meet a surface.

    Attributes:
        distance: [S, R], along the ray; infinite where it meets none.
        surface: [S, R] int64, which one, spheres first, then boxes, then planes.
        normal: [S, R, 3], unit vectors towards where the ray comes from.
    """

    distance: Tensor
    surface: Tensor
    normal: Tensor


@dataclass(frozen=True)
class Spheres:
    """Spheres.

    Attributes:
        centre: [S, n, 3].
        radius: [S, n].
    """

    centre: Tensor
    radius: Tensor

    def distances(self, start: Tensor, direction: Tensor) -> Tensor:
        """[S, R, n], infinite where a ray passes by; of rays [S, R, 3], directions of length 1."""
        offset = start[:, :, None] - self.centre[:, None]  # [S, R, n, 3]
        along = (offset * direction[:, :, None]).sum(-1)
        # |offset|² − along² cancels at grazing incidence; the rejected part does not.
        beside = offset - along[..., None] * direction[:, :, None]
        inside = self.radius[:, None].square() - beside.square().sum(-1)
        distance = -along - inside.clamp(min=0).sqrt()
        return _there(distance, inside > 0)

    def normals(self, point: Tensor, direction: Tensor, index: Tensor) -> Tensor:
        """[S, R, 3], at points [S, R, 3] on the spheres ``index``, [S, R]."""
        return (point - _of(self.centre, index)) / _of(self.radius[..., None], index)


@dataclass(frozen=True)
class Boxes:
    """Boxes, turned as they like.

    Attributes:
        centre: [S, n, 3].
        half: [S, n, 3], half of the edges.
        axes: [S, n, 3, 3], the directions of the edges as rows: a rotation.
    """

    centre: Tensor
    half: Tensor
    axes: Tensor

    def distances(self, start: Tensor, direction: Tensor) -> Tensor:
        """[S, R, n], as of spheres."""
        near, far = self._slabs(start, direction)
        distance = near.amax(-1)
        return _there(distance, distance < far.amin(-1))

    def normals(self, point: Tensor, direction: Tensor, index: Tensor) -> Tensor:
        """[S, R, 3], as of spheres; the face is the one that the ray came through."""
        axes = _of(self.axes.flatten(-2), index).unflatten(-1, (3, 3))
        local = torch.einsum("sraj,srj->sra", axes, point - _of(self.centre, index))
        face = (local.abs() / _of(self.half, index)).argmax(-1, keepdim=True)
        normal = axes.gather(2, face[..., None].expand(-1, -1, -1, 3))[:, :, 0]
        outwards: Tensor = normal * local.gather(2, face).sign()
        return outwards

    def _slabs(self, start: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
        """Distances at which a ray enters and leaves each pair of faces, [S, R, n, 3]."""
        offset = start[:, :, None] - self.centre[:, None]
        origin = torch.einsum("snaj,srnj->srna", self.axes, offset)
        slope = torch.einsum("snaj,srj->srna", self.axes, direction)
        slope = torch.where(slope.abs() < 1e-300, 1e-300, slope)  # 0 / 0 is no distance
        one = (-self.half[:, None] - origin) / slope
        other = (self.half[:, None] - origin) / slope
        return torch.minimum(one, other), torch.maximum(one, other)


@dataclass(frozen=True)
class Planes:
    """Planes {x: normal · x = offset}.

    Attributes:
        normal: [S, n, 3], of length 1.
        offset: [S, n].
    """

    normal: Tensor
    offset: Tensor

    def distances(self, start: Tensor, direction: Tensor) -> Tensor:
        """[S, R, n], as of spheres."""
        height = torch.einsum("snj,srj->srn", self.normal, start)
        slope = torch.einsum("snj,srj->srn", self.normal, direction)
        distance = (self.offset[:, None] - height) / slope
        return _there(distance, slope != 0)

    def normals(self, point: Tensor, direction: Tensor, index: Tensor) -> Tensor:
        """[S, R, 3], as of spheres; the side that the ray came from."""
        normal = _of(self.normal, index)
        return -normal * (normal * direction).sum(-1, keepdim=True).sign()


Surfaces = tuple[Spheres, Boxes, Planes]


def first(surfaces: Surfaces, start: Tensor, direction: Tensor) -> Hits:
    """What every ray meets first.

    Args:
        surfaces: Of S scenes.
        start: [S, R, 3], float64.
        direction: [S, R, 3], of length 1.
    """
    kinds = [kind.distances(start, direction) for kind in surfaces]
    distance, surface = torch.cat(kinds, -1).min(-1)
    point = start + torch.where(distance.isfinite(), distance, 0.0)[..., None] * direction
    normal = torch.zeros_like(direction)
    begin = 0
    every: list[Spheres | Boxes | Planes] = [*surfaces]
    for kind, found in zip(every, kinds, strict=True):
        count = found.shape[-1]
        here = (surface >= begin) & (surface < begin + count) & distance.isfinite()
        if count:
            index = (surface - begin).clamp(0, count - 1)
            own = kind.normals(point, direction, index)
            normal = torch.where(here[..., None], own, normal)
        begin += count
    return Hits(distance, surface, normal)


def _there(distance: Tensor, met: Tensor) -> Tensor:
    return torch.where(met & (distance > _NEAR), distance, inf)


def _of(values: Tensor, index: Tensor) -> Tensor:
    """[S, R, k] from [S, n, k] by [S, R]."""
    return values.gather(1, index[..., None].expand(-1, -1, values.shape[-1]))
