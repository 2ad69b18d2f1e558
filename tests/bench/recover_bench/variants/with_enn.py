import enn.elastic as elastic
import torch.nn.functional as F
from common import ARGUMENTS, BACKEND, batch, build, device_of, finish, mark
from torch.nn.parallel import DistributedDataParallel


def main():
    elastic.init(BACKEND)
    device = device_of(elastic.local_rank())
    model, optimizer, scheduler = build(device)
    state = elastic.State(model=model, optimizer=optimizer, scheduler=scheduler)

    @elastic.run(state)
    def train(state):
        rank = elastic.rank()
        net = DistributedDataParallel(model, find_unused_parameters=True)
        for step in range(state.step, ARGUMENTS.steps):
            rows, targets = batch(step, rank, device)
            optimizer.zero_grad()
            loss = F.mse_loss(net(rows), targets)
            loss.backward()
            optimizer.step()
            scheduler.step()
            state.step += 1
            mark(step, rank, loss)

    train(state)
    finish(model, elastic.rank())


main()
