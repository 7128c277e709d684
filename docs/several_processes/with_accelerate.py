"""Accelerate: torchrun --nproc-per-node 2 with_accelerate.py [checkpoint], or accelerate launch."""

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from example import BATCH, EPOCHS, Data, network, save
from torch.utils.data import DataLoader

accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(split_batches=True))
backbone, mtl = network()
optimizer = torch.optim.Adam([*backbone.parameters(), *mtl.parameters()], lr=0.01)
net, optimizer, loader = accelerator.prepare(backbone, optimizer, DataLoader(Data(), BATCH))

for _ in range(EPOCHS):
    for x, targets in loader:
        optimizer.zero_grad()
        mtl.backward(net(x), targets)  # in place of accelerator.backward(loss)
        optimizer.step()
    mtl.update_prior()

if accelerator.is_main_process:
    save(backbone, mtl)
accelerator.end_training()
