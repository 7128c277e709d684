"""What a user's type checker knows of this package: `mypy` (`make check`) reads this file.

Nothing runs it. Each comment expects an error, and one that is not used is an error in strict mode.
"""

import torch

from bayesagg_pyro import BayesAgg, heads, posteriors, priors

posterior = posteriors.Gaussian(torch.zeros(1, 2), torch.eye(2)[None])
head = heads.Gaussian(2)
engine = BayesAgg({"y": head}, prior=priors.FullData())
posterior.does_not_exist()  # type: ignore[attr-defined]
posterior.rsample((3,)).no_tensor_has_this()  # type: ignore[attr-defined]
head.does_not_exist()  # type: ignore[operator]
engine.does_not_exist()  # type: ignore[operator]
