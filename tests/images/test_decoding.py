"""Images decoded once, kept in a file, and named when they are damaged."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from experiments.cifar.sources import digest
from experiments.errors import DataError
from experiments.images import decode as decoding
from experiments.images.decode import Form, decoded
from tests.images.fixtures import picture, save, truncate


def files(folder: Path, count: int = 70, size: int = 16) -> list[Path]:
    return [save(folder / f"{k:03}.png", picture(k, size)) for k in range(count)]


def test_decoded_equals_the_files(tmp_path: Path, cache: Path) -> None:
    paths = files(tmp_path / "images")
    pixels = decoded("some", paths, Form(16), cache)
    assert pixels.shape == (70, 3, 16, 16)
    assert pixels.dtype == torch.uint8
    for index in (0, 63, 64, 69):  # across the chunks
        assert np.array_equal(pixels[index].numpy().transpose(1, 2, 0), picture(index, 16))


def test_a_name_may_be_any_bytes(tmp_path: Path, cache: Path) -> None:
    """As an archive of another encoding leaves them."""
    names = [os.fsdecode(name) for name in (b"\xe9.png", b"\xea.png")]
    paths = [save(tmp_path / name, picture(k, 16)) for k, name in enumerate(names)]
    assert decoded("some", paths, Form(16), cache).shape == (2, 3, 16, 16)
    folder = tmp_path / "set"
    for part in ("train", "test"):
        for kind in (b"a", b"\xff"):
            save(folder / part / os.fsdecode(kind) / names[0], picture(0, 16))
    before = digest(folder)
    save(folder / "train" / "a" / "b.png", picture(0, 16))
    assert digest(folder) != before


def test_every_kind_of_image_takes_the_form(tmp_path: Path, cache: Path) -> None:
    colour = picture(3, 40)
    kinds = {
        "rgb": Image.fromarray(colour),
        "alpha": Image.fromarray(np.concatenate([colour, colour[..., :1]], -1)),
        "palette": Image.fromarray(colour).quantize(),
        "grey": Image.fromarray(picture(3, 40, grey=True)),
    }
    paths = []
    for name, image in kinds.items():
        paths.append(tmp_path / f"{name}.png")
        image.save(paths[-1])
    assert decoded("a", paths, Form(20), cache).shape == (4, 3, 20, 20)
    grey = decoded("b", paths, Form(20, grey=True), cache)
    assert grey.shape == (4, 1, 20, 20)
    # Resizing takes the mean of what a pixel covers: half the size is close to 2x2 averages.
    means = picture(3, 40, grey=True).reshape(20, 2, 20, 2).mean((1, 3))
    assert np.abs(grey[3, 0].numpy() - means).max() < 8


def test_channels_of_more_than_8_bits_are_refused(tmp_path: Path, cache: Path) -> None:
    """All above 255 would be white."""
    file = tmp_path / "deep.png"
    Image.fromarray(picture(3, 16, grey=True).astype(np.uint16) * 256).save(file)
    with pytest.raises(DataError, match=r"deep\.png \(more than 8 bits .*save it with 8"):
        decoded("a", [file], Form(16, grey=True), cache)


def test_decoding_happens_once(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = files(tmp_path / "images", 5)
    first = decoded("some", paths, Form(16), cache).clone()
    calls: list[Path] = []
    real = decoding.decode

    def counting(file: Path, form: Form) -> np.ndarray:
        calls.append(file)
        return real(file, form)

    monkeypatch.setattr(decoding, "decode", counting)
    again = decoded("some", paths, Form(16), cache)
    assert torch.equal(first, again)
    assert calls == []
    save(paths[2], picture(99, 16))
    os.utime(paths[2], ns=(1, 1))  # a coarse clock must not hide the change
    changed = decoded("some", paths, Form(16), cache)
    assert calls
    assert not torch.equal(changed[2], first[2])
    assert torch.equal(changed[3], first[3])


def test_what_is_done_to_the_tensor_stays_there(tmp_path: Path, cache: Path) -> None:
    paths = files(tmp_path / "images", 3)
    pixels = decoded("some", paths, Form(16), cache)
    kept = pixels.clone()
    pixels.zero_()
    assert torch.equal(decoded("some", paths, Form(16), cache), kept)


def test_damaged_images_are_named(tmp_path: Path, cache: Path) -> None:
    paths = files(tmp_path / "images", 12)
    truncate(paths[1])
    paths[4].write_text("hello")
    paths[6].write_bytes(b"")
    truncate(paths[9])
    with pytest.raises(DataError, match=r"4 of 12 images are damaged") as caught:
        decoded("some", paths, Form(16), cache)
    for name in ("001.png", "004.png", "006.png"):
        assert name in str(caught.value)
    assert "and 1 more" in str(caught.value)
    assert "fetch them again, or delete them" in str(caught.value)
    assert list(cache.iterdir()) == []  # neither a half file nor a temporary one


def test_missing_images_are_named(tmp_path: Path, cache: Path) -> None:
    paths = files(tmp_path / "images", 4)
    paths[2].unlink()
    with pytest.raises(DataError, match=r"1 of 4 images are missing .*002\.png"):
        decoded("some", paths, Form(16), cache)
    assert not cache.exists()
    with pytest.raises(DataError, match="not one image"):
        decoded("some", [], Form(16), cache)


def test_damaged_file_of_decoded_images(tmp_path: Path, cache: Path) -> None:
    paths = files(tmp_path / "images", 4)
    decoded("some", paths, Form(16), cache)
    (file,) = cache.iterdir()
    truncate(file)
    with pytest.raises(DataError, match=r"damaged \(1,536 bytes instead of 3,072\): delete it"):
        decoded("some", paths, Form(16), cache)


def test_unwritable_cache(tmp_path: Path) -> None:
    paths = files(tmp_path / "images", 2)
    blocked = save(tmp_path / "file.png", picture(0, 4))
    with pytest.raises(DataError, match="BAYESAGG_DATA"):
        decoded("some", paths, Form(16), blocked / "cache")
