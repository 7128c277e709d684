"""Rooms with balls, boxes and boards in them, drawn at random and rendered with exact targets.

Colours and light are drawn without regard to what a thing is: only its shape tells. Lengths are
metres; a camera's x points right, its y down and its z ahead, and so do those of the normals.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from experiments.dense.frames import IGNORED, Frames
from experiments.dense.rays import Boxes, Hits, Planes, Spheres, Surfaces, first

CLASSES: Final = ("wall", "floor", "ball", "box", "board")

_BALLS, _BOXES, _BOARDS = 3, 3, 2
_LABELS: Final = (2,) * _BALLS + (3,) * _BOXES + (4,) * _BOARDS + (1, 0, 0, 0)
_EYE: Final = 1.5  # height of the camera
_SCENES_AT_ONCE: Final = 8
_GRAZING: Final = 0.12  # cosine below which a depth camera sees nothing of a surface
F64: Final = torch.float64


@dataclass(frozen=True)
class Camera:
    """A pinhole camera at the origin.

    Attributes:
        height: Of the image in pixels.
        width: Of the image in pixels.
        view: Angle of the image's width in degrees.
    """

    height: int
    width: int
    view: float = 75.0

    def directions(self) -> Tensor:
        """[H · W, 3], towards the centre of every pixel, row by row, with z = 1."""
        focal = self.width / 2 / math.tan(math.radians(self.view) / 2)
        y = (torch.arange(self.height, dtype=F64) + 0.5 - self.height / 2) / focal
        x = (torch.arange(self.width, dtype=F64) + 0.5 - self.width / 2) / focal
        rows, columns = torch.meshgrid(y, x, indexing="ij")
        return torch.stack([columns, rows, torch.ones_like(rows)], -1).flatten(0, 1)


@dataclass(frozen=True)
class Rooms:
    """S rooms, in coordinates with the camera at the origin and y down.

    Attributes:
        surfaces: Balls; boxes and boards; floor and three walls.
        colour: [S, n, 3], of every surface, 0 to 1.
        lamp: [S, 3].
        camera: [S, 3, 3], directions of the camera's x, y and z as rows.
        grain: [S], seeds of what is not geometry: noise, and what is not observed.
    """

    surfaces: Surfaces
    colour: Tensor
    lamp: Tensor
    camera: Tensor
    grain: Tensor

    def __len__(self) -> int:
        return len(self.lamp)

    def parts(self, size: int) -> Iterator[Rooms]:
        """So many rooms at a time."""
        for begin in range(0, len(self), size):
            rows = slice(begin, begin + size)
            balls, boxes, planes = self.surfaces
            yield Rooms(
                (
                    Spheres(balls.centre[rows], balls.radius[rows]),
                    Boxes(boxes.centre[rows], boxes.half[rows], boxes.axes[rows]),
                    Planes(planes.normal[rows], planes.offset[rows]),
                ),
                *(part[rows] for part in (self.colour, self.lamp, self.camera, self.grain)),
            )


def draw(count: int, seed: int) -> Rooms:
    """So many rooms, decided by the seed alone."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        drawn = torch.rand(count, *shape, generator=generator, dtype=F64)
        return low + (high - low) * drawn

    def places(number: int) -> tuple[Tensor, Tensor]:
        return uniform(-1.7, 1.7, number), uniform(1.9, 4.0, number)

    x, z = places(_BALLS)
    radius = uniform(0.25, 0.6, _BALLS)
    balls = Spheres(torch.stack([x, _EYE - radius, z], -1), radius)

    x, z = places(_BOXES)
    half = uniform(0.18, 0.5, _BOXES, 3)
    crates = (
        torch.stack([x, _EYE - half[..., 1], z], -1),
        half,
        _about(1, uniform(0, 2 * math.pi, _BOXES)),
    )

    # Boards are thin, lean back and stand on the floor.
    x, z = places(_BOARDS)
    lean, turn = uniform(0.0, 0.5, _BOARDS), uniform(-0.9, 0.9, _BOARDS)
    thin = torch.stack(
        [uniform(0.3, 0.6, _BOARDS), uniform(0.4, 0.8, _BOARDS), uniform(0.02, 0.04, _BOARDS)], -1
    )
    foot = thin[..., 1] * lean.cos() + thin[..., 2] * lean.sin()
    boards = torch.stack([x, _EYE - foot, z], -1), thin, _about(0, lean) @ _about(1, turn)

    sides = torch.stack([uniform(2.1, 3.0), uniform(2.1, 3.0), uniform(4.8, 6.5)], -1)
    normal = torch.tensor([[0, 1, 0], [1, 0, 0], [-1, 0, 0], [0, 0, 1]], dtype=F64)
    offset = torch.cat([torch.full((count, 1), _EYE, dtype=F64), sides], 1)

    pitch, yaw = uniform(0.08, 0.3, 1), uniform(-0.25, 0.25, 1)
    lamp = torch.stack([uniform(-1.5, 1.5), uniform(-1.4, -0.8), uniform(0.5, 3.5)], -1)
    colour = _colours(uniform(0, 1, len(_LABELS)), uniform(0.1, 0.75, len(_LABELS)))
    return Rooms(
        (
            balls,
            Boxes(*(torch.cat(pair, 1) for pair in zip(crates, boards, strict=True))),
            Planes(normal.expand(count, -1, -1), offset),
        ),
        colour * uniform(0.55, 1.0, len(_LABELS), 1),
        lamp,
        (_about(0, -pitch) @ _about(1, yaw))[:, 0],
        torch.randint(2**31, (count,), generator=generator),
    )


def render(rooms: Rooms, camera: Camera) -> Frames:
    """Images, and exact labels, depths (along the camera's z) and normals of every pixel."""
    parts = [_render(part, camera) for part in rooms.parts(_SCENES_AT_ONCE)]
    return Frames.cat(parts)


def with_gaps(frames: Frames, rooms: Rooms) -> Frames:
    """The same as sensors and people would leave them: some pixels are not observed.

    A depth camera sees nothing of surfaces that it grazes, and loses some pixels anywhere; normals
    are made of its depths, and are lost with them. In each image a rectangle has no label.
    """
    assert frames.normal is not None
    count, height, width = frames.label.shape
    label, lost = frames.label.clone(), torch.empty(count, height, width, dtype=torch.bool)
    rays = Camera(height, width).directions().view(height, width, 3).float()
    rays = rays / rays.norm(dim=-1, keepdim=True)
    for row, seed in enumerate(rooms.grain.tolist()):
        generator = torch.Generator().manual_seed(seed + 1)
        lost[row] = torch.rand(height, width, generator=generator) < 0.02
        place = torch.rand(4, generator=generator)
        top, left = (place[0] * 0.8 * height).int(), (place[1] * 0.8 * width).int()
        bottom = top + ((0.05 + 0.2 * place[2]) * height).int()
        right = left + ((0.05 + 0.2 * place[3]) * width).int()
        label[row, top:bottom, left:right] = IGNORED
    facing = torch.einsum("bchw,hwc->bhw", frames.normal, rays).abs()
    lost |= facing < _GRAZING
    return frames._replace(
        label=label,
        depth=torch.where(lost, 0.0, frames.depth),
        normal=torch.where(lost[:, None], 0.0, frames.normal),
    )


def _render(rooms: Rooms, camera: Camera) -> Frames:
    rays = camera.directions()
    length = rays.norm(dim=-1)
    world = torch.einsum("rk,skj->srj", rays / length[:, None], rooms.camera)
    hits = first(rooms.surfaces, torch.zeros_like(world), world)
    size = (len(rooms), camera.height, camera.width)
    normal = torch.einsum("srj,skj->srk", hits.normal, rooms.camera)
    return Frames(
        image=_shade(rooms, world, hits).mT.reshape(len(rooms), 3, *size[1:]).float(),
        label=torch.tensor(_LABELS)[hits.surface].view(size),
        depth=(hits.distance / length).view(size).float(),
        normal=normal.mT.reshape(len(rooms), 3, *size[1:]).float(),
    )


def _shade(rooms: Rooms, direction: Tensor, hits: Hits) -> Tensor:
    """Colours [S, R, 3]: light from all around, a lamp that throws shadows, and some noise."""
    point = hits.distance[..., None] * direction
    to_lamp = rooms.lamp[:, None] - point
    far = to_lamp.norm(dim=-1)
    to_lamp = to_lamp / far[..., None]
    between = first(rooms.surfaces, point + 1e-6 * hits.normal, to_lamp).distance
    lit = (hits.normal * to_lamp).sum(-1).clamp(min=0) * (between > far)
    # What looks up is brighter even in the shade.
    around = 0.34 - 0.1 * hits.normal[..., 1] - 0.06 * hits.normal[..., 0]
    colour = rooms.colour.gather(1, hits.surface[..., None].expand(-1, -1, 3))
    # A grain across floor and walls, wide enough not to alias.
    grain = 1 + 0.07 * (5 * point).sin().prod(-1, keepdim=True)
    strength = 1.5 / (1 + 0.12 * far.square())
    shaded = colour * grain * (around + 0.85 * lit * strength)[..., None]
    noise = torch.stack(
        [
            torch.randn(shaded.shape[1:], generator=torch.Generator().manual_seed(seed), dtype=F64)
            for seed in rooms.grain.tolist()
        ]
    )
    image: Tensor = (shaded.clamp(min=0).pow(1 / 1.6) + 0.012 * noise).clamp(0, 1)
    return image


def _about(axis: int, angle: Tensor) -> Tensor:
    """Rotations [..., 3, 3] about x or y, rows being the turned axes."""
    zero, one = torch.zeros_like(angle), torch.ones_like(angle)
    c, s = angle.cos(), angle.sin()
    if axis == 0:
        rows = [[one, zero, zero], [zero, c, s], [zero, -s, c]]
    else:
        rows = [[c, zero, -s], [zero, one, zero], [s, zero, c]]
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


def _colours(hue: Tensor, saturation: Tensor) -> Tensor:
    """RGB [..., 3] of full brightness."""
    ramp = (6 * hue[..., None] + torch.tensor([0.0, 4.0, 2.0], dtype=F64)) % 6
    pure = ((ramp - 3).abs() - 1).clamp(0, 1)
    return 1 - saturation[..., None] * (1 - pure)
