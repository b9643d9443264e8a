"""Processes of torch.distributed for tests, one for each rank."""

from __future__ import annotations

import os
import socket
from typing import Any

import torch
import torch.distributed as dist

WORLD = 2


def on_ranks(check: Any, backend: str) -> None:
    """Run check(rank) in a process for each rank, with its GPU for NCCL; a failure there fails the test."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.multiprocessing.spawn(_start, (port, check, backend), nprocs=WORLD)


def _start(rank: int, port: int, check: Any, backend: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(WORLD))
    device = None
    if backend == "nccl":
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    dist.init_process_group(backend, rank=rank, world_size=WORLD, device_id=device)
    check(rank)
    dist.destroy_process_group()
