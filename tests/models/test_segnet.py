"""SegNet: shapes, places of pooled values, and what it refuses."""

from __future__ import annotations

import pytest
import torch

from models.encoder_decoder import Branches, EncoderDecoder
from models.errors import NetworkError
from models.segnet import SegNetDecoder, SegNetEncoder


@pytest.mark.parametrize("size", [(16, 16), (19, 30)])
def test_every_pixel_has_features(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    network = EncoderDecoder(SegNetEncoder(4, 3), SegNetDecoder(4, 3))
    images = torch.randn(2, 3, *size)
    features = network(images)
    assert features.shape == (2, 4, *size)
    features.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


def test_values_return_to_where_they_came_from() -> None:
    """With nothing but the unpooling left, a decoder puts every block's maximum back."""
    encoder, decoder = SegNetEncoder(3, 1), SegNetDecoder(3, 1)
    encoder.levels[0] = torch.nn.Identity()
    decoder.levels[0] = torch.nn.Identity()
    images = torch.rand(1, 3, 4, 6)
    back = decoder(encoder(images))
    kept = back != 0
    assert torch.equal(back[kept], images[kept])
    assert kept.sum() == images.numel() / 4
    pooled = torch.nn.functional.max_pool2d
    assert torch.equal(pooled(back, 2), pooled(images, 2))


def test_a_decoder_for_each() -> None:
    torch.manual_seed(0)
    decoders = {name: SegNetDecoder(4, 2) for name in ("one", "other")}
    network = Branches(SegNetEncoder(4, 2), decoders).eval()
    images = torch.randn(1, 3, 8, 8)
    features = network(images)
    assert [*features] == ["one", "other"]
    alone = network.decoders["other"](network.encoder(images))
    assert torch.equal(features["other"], alone)
    assert not torch.equal(features["one"], alone)


def test_the_published_size() -> None:
    """Thirteen convolutions each way, as VGG-16's first thirteen."""
    convolutions = [m for m in SegNetEncoder().modules() if isinstance(m, torch.nn.Conv2d)]
    assert [c.out_channels for c in convolutions] == [
        *([64] * 2 + [128] * 2 + [256] * 3 + [512] * 6)
    ]
    assert sum(isinstance(m, torch.nn.Conv2d) for m in SegNetDecoder().modules()) == 13


def test_what_cannot_work() -> None:
    with pytest.raises(NetworkError, match="levels = 6"):
        SegNetEncoder(levels=6)
    with pytest.raises(NetworkError, match="width = 0"):
        SegNetDecoder(width=0)
    with pytest.raises(NetworkError, match="at least 8 pixels"):
        SegNetEncoder(width=2, levels=3)(torch.zeros(1, 3, 8, 7))
