"""Lightning: torchrun --nproc-per-node 2 with_lightning.py [checkpoint]."""

from typing import Any

import lightning
import torch
from example import BATCH, EPOCHS, WORLD, Data, network, save
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


class Net(lightning.LightningModule):
    """Backbone and engine, with optimisation by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.backbone, self.mtl = network()
        # Lightning wraps all of this in DistributedDataParallel: the engine is to stay outside.
        self._ddp_params_and_buffers_to_ignore = [f"mtl.{name}" for name in self.mtl.state_dict()]

    def training_step(self, batch: tuple[Tensor, dict[str, Tensor]], index: int) -> None:
        """One step."""
        x, targets = batch
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        features = self.backbone(x)
        self.trainer.strategy.pre_backward(features)  # as manual_backward does for a loss
        losses = self.mtl.backward(features, targets)
        optimizer.step()
        self.log("loss", torch.cat(list(losses.values())).sum())

    def on_train_epoch_end(self) -> None:
        """The next prior."""
        self.mtl.update_prior()

    def train_dataloader(self) -> DataLoader[Any]:
        """In order, to be comparable; Lightning puts in a sampler that shuffles else."""
        data = Data()
        sampler: DistributedSampler[Any] = DistributedSampler(data, shuffle=False)
        return DataLoader(data, BATCH // WORLD, sampler=sampler)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Of both."""
        return torch.optim.Adam(self.parameters(), lr=0.01)


trainer = lightning.Trainer(
    accelerator="cpu",
    devices=WORLD,
    strategy="ddp",
    max_epochs=EPOCHS,
    use_distributed_sampler=False,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
net = Net()
trainer.fit(net)
if trainer.is_global_zero:
    save(net.backbone, net.mtl)
