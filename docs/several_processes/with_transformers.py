"""Hugging Face Trainer: torchrun --nproc-per-node 2 with_transformers.py [checkpoint]."""

import tempfile
from typing import Any

import torch
from example import BATCH, EPOCHS, WORLD, Data, network, save
from torch import Tensor, nn
from torch.utils.data import SequentialSampler, default_collate
from transformers import Trainer, TrainerCallback, TrainingArguments

import bayesagg_pyro as ba


class BayesTrainer(Trainer):
    """A trainer of a backbone, whose heads are an engine's."""

    def __init__(self, mtl: ba.BayesAgg, **settings: Any) -> None:
        super().__init__(**settings)
        self.mtl = mtl
        self.add_callback(OfHeads(mtl))

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Of backbone and heads."""
        weights = [*self.model.parameters(), *self.mtl.parameters()]
        self.optimizer = torch.optim.Adam(weights, lr=self.args.learning_rate)
        return self.optimizer

    def training_step(
        self, model: nn.Module, inputs: Any, num_items_in_batch: Tensor | None = None
    ) -> Tensor:
        """In place of a loss and its gradient."""
        model.train()
        x, targets = self._prepare_inputs(inputs)
        losses = self.mtl.backward(model(x), targets)
        return torch.cat(list(losses.values())).sum()

    def _get_train_sampler(self, train_dataset: Any = None) -> SequentialSampler:
        return SequentialSampler(self.train_dataset)  # to be comparable; a Trainer shuffles else


class OfHeads(TrainerCallback):
    """What a Trainer does for its model alone."""

    def __init__(self, mtl: ba.BayesAgg) -> None:
        self.mtl = mtl

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """The gradients have been used."""
        self.mtl.zero_grad()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """The next prior."""
        self.mtl.update_prior()


backbone, mtl = network()
trainer = BayesTrainer(
    mtl,
    model=backbone,
    args=TrainingArguments(
        tempfile.mkdtemp(),
        per_device_train_batch_size=BATCH // WORLD,
        num_train_epochs=EPOCHS,
        learning_rate=0.01,
        lr_scheduler_type="constant",
        max_grad_norm=0,
        remove_unused_columns=False,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    ),
    train_dataset=Data(),
    data_collator=default_collate,
)
trainer.train()
if trainer.is_world_process_zero():
    save(backbone, mtl)
