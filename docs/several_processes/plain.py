"""Plain PyTorch: torchrun --nproc-per-node 2 plain.py [checkpoint]."""

import torch
import torch.distributed as dist
from example import BATCH, EPOCHS, WORLD, Data, network, save
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")  # "nccl" on GPUs
backbone, mtl = network()
net = DistributedDataParallel(backbone)  # the engine stays outside
optimizer = torch.optim.Adam([*backbone.parameters(), *mtl.parameters()], lr=0.01)
data = Data()
sampler: DistributedSampler[object] = DistributedSampler(data, shuffle=False)
loader = DataLoader(data, BATCH // WORLD, sampler=sampler)

for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    for x, targets in loader:
        optimizer.zero_grad()
        losses = mtl.backward(net(x), targets)  # those of all shares
        optimizer.step()
    mtl.update_prior()

if dist.get_rank() == 0:
    save(backbone, mtl)
dist.destroy_process_group()
