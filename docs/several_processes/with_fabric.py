"""Fabric: torchrun --nproc-per-node 2 with_fabric.py [checkpoint]."""

import torch
from example import BATCH, EPOCHS, WORLD, Data, network, save
from lightning.fabric import Fabric
from torch.utils.data import DataLoader

fabric = Fabric(accelerator="cpu", devices=WORLD, strategy="ddp")
fabric.launch()
backbone, mtl = network()
optimizer = torch.optim.Adam([*backbone.parameters(), *mtl.parameters()], lr=0.01)
net, optimizer = fabric.setup(backbone, optimizer)  # on GPUs: mtl.to(fabric.device), too
loader = fabric.setup_dataloaders(DataLoader(Data(), BATCH // WORLD))

for _ in range(EPOCHS):
    for x, targets in loader:
        optimizer.zero_grad()
        mtl.backward(net(x), targets)
        optimizer.step()
    mtl.update_prior()

if fabric.is_global_zero:
    save(backbone, mtl)
