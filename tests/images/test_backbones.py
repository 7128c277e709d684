"""The image networks: shapes, trainability, and where weights come from."""

from __future__ import annotations

import sys
from pathlib import Path
from urllib.error import URLError

import pytest
import torch
import torchvision
from torch import nn
from torch.nn import functional

from experiments.errors import DataError, SettingsError
from experiments.utkface.benchmark import UtkFace
from models import CifarNetwork, ResNetFeatures, WeightsError
from models.errors import MissingPackageError, NetworkError


def every_parameter_learns(network: nn.Module, images: torch.Tensor) -> None:
    features = network(images)
    (features * torch.randn_like(features)).sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.requires_grad, name
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_cifar_network_is_the_papers() -> None:
    """[convolution with reflection, ELU, pooling] three times, then batch normalisation."""
    torch.manual_seed(0)
    network = CifarNetwork()
    images = torch.randn(4, 3, 32, 32)
    x = images
    convolutions = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
    assert [c.out_channels for c in convolutions] == [160, 160, 160]
    for convolution in convolutions:
        padded = functional.pad(x, (1, 1, 1, 1), mode="reflect")
        x = functional.conv2d(padded, convolution.weight, convolution.bias)
        x = functional.max_pool2d(functional.elu(x), 3)
    x = x.flatten(1)
    assert x.shape == (4, 160)
    x = (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-5).sqrt()
    torch.testing.assert_close(network(images), x, rtol=1e-4, atol=1e-4)
    assert network.out_features == 160


@pytest.mark.parametrize(("size", "features"), [(27, 8), (32, 8), (54, 32), (80, 32), (96, 72)])
def test_cifar_network_knows_its_features(size: int, features: int) -> None:
    network = CifarNetwork(8, image_size=size)
    assert network.out_features == features
    assert network(torch.randn(2, 3, size, size)).shape == (2, features)


def test_cifar_network_trains_whole() -> None:
    torch.manual_seed(0)
    every_parameter_learns(CifarNetwork(16), torch.randn(8, 3, 32, 32))


def test_cifar_network_refuses() -> None:
    with pytest.raises(NetworkError, match=r"image_size = 20 is too small for 3 poolings.* 27"):
        CifarNetwork(image_size=20)
    with pytest.raises(NetworkError, match="width = 0"):
        CifarNetwork(0)
    with pytest.raises(
        NetworkError, match=r"images must be \[B, 3, 32, 32\], got \[2, 1, 32, 32\]"
    ):
        CifarNetwork(8)(torch.randn(2, 1, 32, 32))


@pytest.mark.parametrize(("depth", "convolutions"), [(18, 20), (34, 36)])
def test_residual_network_trains_whole(depth: int, convolutions: int) -> None:
    torch.manual_seed(0)
    network = ResNetFeatures(depth)
    assert sum(isinstance(m, nn.Conv2d) for m in network.modules()) == convolutions
    assert network.out_features == 256
    assert network.projection.weight.shape == (256, 512)
    every_parameter_learns(network, torch.randn(3, 3, 64, 64))
    with torch.no_grad():
        features = network(torch.randn(2, 3, 64, 64))
    assert features.shape == (2, 256)
    assert features.min() > -1  # ELU


def test_residual_network_from_a_file(tmp_path: Path) -> None:
    """All of torchvision's network but its classification layer."""
    torch.manual_seed(1)
    source = torchvision.models.resnet18(num_classes=1000).eval()
    for buffer in source.buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)
    file = tmp_path / "weights.pth"
    torch.save(source.state_dict(), file)
    network = ResNetFeatures(18, weights=file).eval()
    images = torch.randn(2, 3, 64, 64)
    source.fc = nn.Identity()
    expected = functional.elu(network.projection(source(images)))
    torch.testing.assert_close(network(images), expected)


def test_weights_that_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WeightsError, match=r"no weights file .*absent"):
        ResNetFeatures(18, weights=tmp_path / "absent.pth")
    file = tmp_path / "weights.pth"
    torch.save(torchvision.models.resnet18().state_dict(), file)
    with pytest.raises(WeightsError, match=r"not those of a ResNet-34 .*is missing"):
        ResNetFeatures(34, weights=file)
    content = file.read_bytes()
    for damaged in (content[: len(content) // 2], b"", b"hello"):
        file.write_bytes(damaged)
        with pytest.raises(WeightsError, match="damaged or not a state dict"):
            ResNetFeatures(18, weights=file)
    torch.save({"epoch": 3}, file)
    with pytest.raises(WeightsError, match="not a state dict of tensors"):
        ResNetFeatures(18, weights=str(file))

    def offline(*_: object, **__: object) -> None:
        raise URLError("no route")

    monkeypatch.setattr(torchvision.models.ResNet18_Weights, "get_state_dict", offline)
    with pytest.raises(WeightsError, match=r"no route.*give the file"):
        ResNetFeatures(18, weights="imagenet")
    with pytest.raises(DataError, match="no weights file"):
        UtkFace(weights="absent.pth").backbone()


def test_imagenet_weights_come_through_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(2)
    state = torchvision.models.resnet18().state_dict()
    monkeypatch.setattr(
        torchvision.models.ResNet18_Weights, "get_state_dict", lambda *_, **__: dict(state)
    )
    network = ResNetFeatures(18, weights="imagenet")
    assert torch.equal(network.trunk.state_dict()["conv1.weight"], state["conv1.weight"])


def test_residual_network_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NetworkError, match=r"depth = 50.*18, 34"):
        ResNetFeatures(50)
    with pytest.raises(SettingsError, match="depth = 50"):
        UtkFace(depth=50)
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(MissingPackageError, match="pip install torchvision"):
        ResNetFeatures(18)
