"""What is rendered is exact: against automatic differentiation, silhouettes, and ray marching."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor

from experiments.dense.frames import flipped, seen_normal
from experiments.dense.rays import Boxes, Hits, Planes, Spheres, Surfaces, first
from experiments.dense.rooms import Camera, Rooms, draw, render, with_gaps

F64 = torch.float64
CAMERA = Camera(30, 40)


@pytest.fixture(scope="module")
def rooms() -> Rooms:
    return draw(4, seed=3)


def rays(camera: Camera, count: int) -> Tensor:
    """[count, R, 3], of length 1."""
    directions = camera.directions()
    return (directions / directions.norm(dim=-1, keepdim=True)).expand(count, -1, -1)


def trace(rooms: Rooms, camera: Camera) -> tuple[Tensor, Hits]:
    directions = rays(camera, len(rooms)) @ rooms.camera
    return directions, first(rooms.surfaces, torch.zeros_like(directions), directions)


def signed_distance(surfaces: Surfaces, point: Tensor) -> Tensor:
    """[S, R], to the nearest surface; negative inside of something."""
    balls, boxes, planes = surfaces
    ball = (point[:, :, None] - balls.centre[:, None]).norm(dim=-1) - balls.radius[:, None]
    local = torch.einsum("snaj,srnj->srna", boxes.axes, point[:, :, None] - boxes.centre[:, None])
    beyond = local.abs() - boxes.half[:, None]
    box = beyond.clamp(min=0).norm(dim=-1) + beyond.amax(-1).clamp(max=0)
    plane = planes.offset[:, None] - torch.einsum("snj,srj->srn", planes.normal, point)
    return torch.cat([ball, box, plane.abs()], -1).amin(-1)


def test_distances_agree_with_ray_marching(rooms: Rooms) -> None:
    directions, hits = trace(rooms, CAMERA)
    marched = torch.zeros_like(hits.distance)
    for _ in range(400):  # never steps over a surface
        marched += signed_distance(rooms.surfaces, marched[..., None] * directions)
    arrived = signed_distance(rooms.surfaces, marched[..., None] * directions) < 1e-10
    assert arrived.double().mean() > 0.97  # others graze something, and are still on their way
    torch.testing.assert_close(marched[arrived], hits.distance[arrived], rtol=0, atol=1e-7)
    assert (marched <= hits.distance + 1e-7).all()


def test_normals_stand_on_what_is_seen(rooms: Rooms) -> None:
    """They are orthogonal to the derivatives of the point that a pixel sees."""
    directions, hits = trace(rooms, CAMERA)

    def point(x: Tensor, y: Tensor) -> Tensor:
        plain = CAMERA.directions() + torch.stack([x, y, torch.zeros_like(x)], -1)
        unit = (plain / plain.norm(dim=-1, keepdim=True)) @ rooms.camera
        start = torch.zeros_like(unit)
        each = torch.cat([kind.distances(start, unit) for kind in rooms.surfaces], -1)
        return each.gather(-1, hits.surface[..., None]) * unit

    zero = torch.zeros(len(CAMERA.directions()), dtype=F64)
    for moved in ((torch.ones_like(zero), zero), (zero, torch.ones_like(zero))):
        _, tangent = torch.func.jvp(point, (zero, zero), moved)
        size = tangent.norm(dim=-1)
        assert (size > 0).all()
        cosine = (tangent * hits.normal).sum(-1) / size
        assert cosine.abs().max() < 1e-9
    torch.testing.assert_close(hits.normal.norm(dim=-1), torch.ones_like(hits.distance))
    assert ((hits.normal * directions).sum(-1) < 0).all()  # towards the camera


def test_a_ball_is_seen_within_its_cone() -> None:
    centre, radius = torch.tensor([[[0.4, -0.2, 3.0]]], dtype=F64), torch.tensor([[0.7]], dtype=F64)
    directions = rays(Camera(60, 80), 1)
    found = Spheres(centre, radius).distances(torch.zeros_like(directions), directions)[..., 0]
    cosine = directions @ centre[0, 0] / centre.norm()
    assert torch.equal(found.isfinite(), cosine > (1 - (radius / centre.norm()) ** 2).sqrt())


def test_a_box_is_seen_within_the_hull_of_its_corners() -> None:
    scipy = pytest.importorskip("scipy.spatial")
    rotation = torch.linalg.qr(
        torch.randn(3, 3, generator=torch.Generator().manual_seed(1), dtype=F64)
    )[0]
    centre = torch.tensor([0.2, 0.1, 4.0], dtype=F64)
    half = torch.tensor([0.9, 0.5, 0.3], dtype=F64)
    box = Boxes(centre[None, None], half[None, None], rotation[None, None])
    camera = Camera(60, 80)
    found = box.distances(torch.zeros(1, 4800, 3, dtype=F64), rays(camera, 1))[0, :, 0].isfinite()
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=F64)] * 3)
    corners = centre + (signs * half) @ rotation
    hull = scipy.Delaunay((corners[:, :2] / corners[:, 2:]).numpy())
    inside = hull.find_simplex(camera.directions()[:, :2].numpy()) >= 0
    np.testing.assert_array_equal(found.numpy(), inside)
    assert 0.02 < inside.mean() < 0.5


def test_depth_of_a_plane() -> None:
    """One that faces the camera is as far everywhere, along the camera's z."""
    ahead = Planes(torch.tensor([[[0.0, 0.0, 1.0]]], dtype=F64), torch.tensor([[2.5]], dtype=F64))
    directions = rays(CAMERA, 1)
    distance = ahead.distances(torch.zeros_like(directions), directions)[..., 0]
    torch.testing.assert_close(distance * directions[..., 2], torch.full_like(distance, 2.5))


def test_mirrored_rooms_are_mirrored_images(rooms: Rooms) -> None:
    """So the x of normals changes sign when an image is flipped."""
    mirror = torch.tensor([-1.0, 1.0, 1.0], dtype=F64)
    balls, boxes, planes = rooms.surfaces
    other = dataclasses.replace(
        rooms,
        surfaces=(
            Spheres(balls.centre * mirror, balls.radius),
            Boxes(boxes.centre * mirror, boxes.half, boxes.axes * mirror),
            Planes(planes.normal * mirror, planes.offset),
        ),
        camera=mirror[:, None] * rooms.camera * mirror,
    )
    expected, found = flipped(render(rooms, CAMERA)), render(other, CAMERA)
    same = expected.label == found.label  # but where a ray passes an edge by a rounding error
    assert same.double().mean() > 0.999
    torch.testing.assert_close(found.depth[same], expected.depth[same])
    assert found.normal is not None
    assert expected.normal is not None
    both = same[:, None].expand_as(found.normal)
    torch.testing.assert_close(found.normal[both], expected.normal[both], rtol=0, atol=1e-5)


def test_rooms_are_decided_by_their_seed(rooms: Rooms) -> None:
    one, again = render(rooms, CAMERA), render(draw(4, seed=3), CAMERA)
    for found, expected in zip(one, again, strict=True):
        assert torch.equal(found, expected)
    assert not torch.equal(render(draw(4, seed=4), CAMERA).depth, one.depth)
    assert len(one.label.unique()) == 5
    assert one.image.min() >= 0
    assert one.image.max() <= 1


def test_gaps_leave_the_rest_as_it_is(rooms: Rooms) -> None:
    whole = render(rooms, CAMERA)
    gaps = with_gaps(whole, rooms)
    seen = gaps.depth > 0
    assert 0.01 < 1 - seen.double().mean() < 0.2
    assert torch.equal(gaps.depth[seen], whole.depth[seen])
    assert torch.equal(seen_normal(gaps), seen)
    assert 0 < (gaps.label == -1).double().mean() < 0.2
    assert torch.equal(gaps.label[gaps.label >= 0], whole.label[gaps.label >= 0])
    assert torch.equal(gaps.image, whole.image)
