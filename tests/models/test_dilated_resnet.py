"""The dilated residual network: sizes, weights of torchvision, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from models.dilated_resnet import AsppDecoder, DilatedResNetEncoder
from models.encoder_decoder import Branches
from models.errors import NetworkError

torchvision = pytest.importorskip("torchvision")


def test_every_pixel_has_features_also_of_a_single_image() -> None:
    torch.manual_seed(0)
    network = Branches(DilatedResNetEncoder(), {"one": AsppDecoder(4), "other": AsppDecoder(4)})
    image = torch.randn(1, 3, 16, 20)
    encoded = network.encoder(image)
    assert encoded.features.shape == (1, 2048, 2, 3)  # an eighth
    features = network(image)
    assert [one.shape for one in features.values()] == [(1, 4, 16, 20)] * 2
    assert not torch.equal(features["one"], features["other"])
    sum(one.sum() for one in features.values()).backward()
    grads = {name: p.grad for name, p in network.named_parameters()}
    assert all(grad is not None and grad.isfinite().all() for grad in grads.values())


def test_weights_are_those_of_the_network_that_strides(tmp_path: Path) -> None:
    """Its state dict fits, and where nothing is dilated yet features are the same."""
    whole = torchvision.models.resnet50(weights=None).eval()
    torch.save(whole.state_dict(), tmp_path / "weights.pt")
    dilated = DilatedResNetEncoder(50, tmp_path / "weights.pt").eval().trunk
    images = torch.randn(1, 3, 16, 16)
    early = torch.nn.Sequential(*list(dilated)[:6])
    expected = torch.nn.Sequential(*list(whole.children())[:6])
    torch.testing.assert_close(early(images), expected(images))
    dilations = {m.dilation for m in dilated[7].modules() if isinstance(m, torch.nn.Conv2d)}
    assert (4, 4) in dilations


def test_what_cannot_work() -> None:
    with pytest.raises(NetworkError, match=r"depth = 18 cannot be dilated: give one of 50, 101"):
        DilatedResNetEncoder(18)
    with pytest.raises(NetworkError, match="width = 0"):
        AsppDecoder(0)
