"""The small helpers that every stage shares."""

import pytest
import torch

from bayesagg_pyro import linalg


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_one_bad_entry_is_found(bad: float) -> None:
    values = torch.zeros(4, 3)
    assert linalg.all_finite(values)
    values[2, 1] = bad
    assert not linalg.all_finite(values)
    values[0, 0] = -bad  # opposite infinities
    assert not linalg.all_finite(values)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_sum_that_overflows_is_no_bad_entry(dtype: torch.dtype) -> None:
    values = torch.full((8, 8), torch.finfo(dtype).max, dtype=dtype)
    assert linalg.all_finite(values)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
def test_integers_are_finite(dtype: torch.dtype) -> None:
    assert linalg.all_finite(torch.ones(5, dtype=dtype))
