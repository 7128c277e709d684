"""Options of Bayesian aggregation, and the library's objects that they stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, Literal

from bayesagg_pyro import priors
from bayesagg_pyro.aggregation import Aggregation, Bargain, PrecisionWeighted, TorchJD
from bayesagg_pyro.errors import BayesAggError
from experiments.errors import SettingsError
from experiments.methods.base import MethodOptions
from experiments.methods.torchjd_classes import PREFIX, arguments_of, defaults_of, kinds
from experiments.settings import require, require_numbers

Prior = Literal["full-data", "fresh", "running", "previous-batch", "constant", "evidence"]
Resolution = Literal["example", "dimension", "task"]


@dataclass(frozen=True)
class BayesAggOptions(MethodOptions):
    """Options of Bayesian aggregation; the defaults are the paper's for QM9.

    Attributes:
        pretrain: Epochs of linear scalarisation before the first Bayesian one.
        rule: Powers, resolution, bounds and mean as ``"given"`` below, or the ``"default"`` of the
            library, which reads none of these: s = 0.8 per task among regression tasks, whose part
            of the update is as long as in a mean of losses; the weight of that mean and the
            gradient at the learned weights for others.
        power: Exponent s of the precision in the weights, 0 (plain mean) to 1; one for all tasks,
            ``{head: s}``, or one for each task in a list, heads in order.
        prior: The posterior of the last epoch's features (``"full-data"``, the paper), the same
            with the variance of highest evidence per task (``"evidence"``), of features computed
            anew at the epoch's end (``"fresh"``), of all steps with exponential forgetting
            (``"running"``), or of the batch before (``"previous-batch"``); or no data at all
            (``"constant"``).
        prior_variance: Variance γ of the prior under that posterior; ``"evidence"`` finds its own.
        fresh_share: Share of the training examples whose features ``"fresh"`` computes anew.
        half_life: Of a step's weight under ``"running"``, in examples; None for a quarter of an
            epoch.
        leave_batch_out: Take a step's own batch out of its prior, where it would count twice.
        resolution: A weight for each ``"example"`` and dimension (the paper), with the variance
            averaged over the batch for each ``"dimension"``, or over both for each ``"task"``.
        floor: Raise variances to this multiple of the tasks' median; None leaves them.
        max_ratio: Largest ratio of two tasks' weights; None sets no bound.
        reduction: Size of the update: ``"mean"`` (the paper; weights sum to 1) or ``"sum"`` (times
            the number of tasks, the size that the pre-training had).
        aggregator: What combines the gradients: ``"precision"``, the library's ``"Bargain"``, or
            the name of an aggregator of TorchJD such as ``"IMTLG"``, which sees the gradients'
            means. None but the first reads the options of the weights.
        covariance: ``"diagonal"``, or the paper's ``"full"`` solution, which is defined for power 1
            alone and takes a matrix for each task and example.
        noise: Of the regression heads: the standard deviation of standardised targets (``"unit"``,
            the paper); for each task the value of highest evidence, at an epoch's end
            (``"learned"``); or unknown and integrated over, the prior in its units
            (``"integrated"``). Losses stay as they are.
        mean: The gradient averaged over the ``"posterior"`` (the paper), or taken at its mean
            (``"plug-in"``), where the uncertainty decides the weights alone; or likewise, at the
            learned weights for heads of classes and at the mean for regression (``"learned"``).
    """

    renamed: ClassVar[Mapping[str, str]] = {"scale": "reduction"}

    pretrain: int = 50
    rule: Literal["given", "default"] = "given"
    power: float | Mapping[str, float] | Sequence[float] = 0.85
    prior: Prior = "full-data"
    prior_variance: float = 1e-3
    fresh_share: float = 1.0
    half_life: float | None = None
    leave_batch_out: bool = False
    resolution: Resolution = "example"
    floor: float | None = None
    max_ratio: float | None = None
    reduction: Literal["mean", "sum"] = "mean"
    aggregator: str = "precision"
    covariance: Literal["diagonal", "full"] = "diagonal"
    mean: Literal["posterior", "plug-in", "learned"] = "posterior"
    noise: Literal["unit", "learned", "integrated"] = "unit"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.pretrain >= 1, "pretrain", self.pretrain, "the first prior needs 1 epoch")
        require_numbers(self, "prior_variance", "half_life", above=0)
        require_numbers(self, "fresh_share", above=0, most=1)
        require(_are_powers(self.power), "power", self.power, "give numbers from 0 to 1")
        try:
            self.aggregation()
            self.combination(1)
        except BayesAggError as error:
            raise SettingsError(str(error)) from error
        prior, without_it = self.prior, self.prior in ("previous-batch", "constant")
        part = self.leave_batch_out and prior == "fresh" and self.fresh_share != 1
        rest = self.leave_batch_out and without_it
        learned = self.noise == "learned" and without_it
        unknown = self.noise == "integrated" and prior in ("evidence", "previous-batch")
        for wrong, name, why in (
            (part, "fresh_share", "leave_batch_out needs all training examples in the prior"),
            (learned, "noise", f"it takes a prior of all training data, not {prior}"),
            (unknown, "noise", f"prior {prior} cannot hold an unknown noise"),
            (rest, "leave_batch_out", f"prior {prior} never holds the step's batch"),
        ):
            require(not wrong, name, getattr(self, name), why)

    @classmethod
    def current(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """A number stood for the half-life once, also where no prior had one."""
        found = super().current(options)
        return found if found.get("prior") == "running" else {**found, "half_life": None}

    @classmethod
    def former(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """With that number."""
        found = super().former(options)
        return found if found["prior"] == "running" else {**found, "half_life": 77_000.0}

    def check(self, epochs: int) -> None:
        """There must be at least one Bayesian epoch."""
        if self.pretrain >= epochs:
            lower = "lower --pretrain or " if self.pretrain > 1 else ""
            raise SettingsError(
                f"pretrain = {self.pretrain} leaves no Bayesian epoch in a run of {epochs}: "
                f"{lower}raise --epochs"
            )

    def unread(self) -> set[str]:
        """Options that decide nothing, since the rule or the aggregator does."""
        usual, plain = self.rule == "default", self.aggregator == "precision"
        weights = {"power", "resolution", "floor", "max_ratio", "covariance"}
        return (weights if usual or not plain else set()) | ({"mean"} if usual else set())

    def policy(self) -> priors.Policy:
        """Where priors come from."""
        variance, leave = self.prior_variance, self.leave_batch_out
        if self.prior == "fresh":
            # A part of the examples stands for all of them.
            return priors.Fresh(
                variance=variance, temperature=self.fresh_share, leave_batch_out=leave
            )
        if self.prior == "running":
            return priors.Running(self.half_life, variance=variance, leave_batch_out=leave)
        if self.prior == "previous-batch":
            return priors.PreviousBatch(variance=variance)
        if self.prior == "constant":
            return priors.Constant(variance)
        if self.prior == "evidence":
            return priors.FullData("learned", leave_batch_out=leave)
        return priors.FullData(variance, leave_batch_out=leave)

    def combination(self, tasks: int) -> Aggregation:
        """What combines the gradients of so many tasks.

        Raises:
            SettingsError: Nothing has the aggregator's name, or what has it needs arguments.
        """
        name = self.aggregator
        if name == "precision":
            return self.aggregation()
        if name == "Bargain":
            return Bargain()
        classes = kinds("aggregation").items()
        known = {n: k for n, k in classes if "..." not in dict(defaults_of(k)).values()}
        require(name in known, "aggregator", name, f"give precision, Bargain, {', '.join(known)}")
        return TorchJD(known[name](**arguments_of(f"{PREFIX}{name}", known[name], tasks, {})))

    def aggregation(self, resolution: Resolution | None = None) -> PrecisionWeighted:
        """The aggregation, if wanted at another resolution than the options'."""
        return PrecisionWeighted(
            power=self.power,
            covariance=self.covariance,
            resolution=resolution or self.resolution,
            floor=self.floor,
            max_ratio=self.max_ratio,
        )


def _are_powers(power: object) -> bool:
    """Whether this is a number from 0 to 1, or at least one of them in a list or by head."""
    if isinstance(power, Mapping):
        power = list(power.values())
    several = power if isinstance(power, Sequence) and not isinstance(power, str) else [power]
    return bool(several) and all(isinstance(s, Real) and 0 <= float(s) <= 1 for s in several)
