"""One of two ranks: rank 0 ends with exit code 7 while a message of rank 1 never comes."""

import os
import sys
import time
from datetime import timedelta
from types import SimpleNamespace

import torch
import torch.distributed as dist

from dcp_runtime.transport.gloo_transport import GlooTransport
from dcp_runtime.transport.transport import Parcel


class SlowToGo:
    """Keeps Python shutting down while rank 1 leaves, which wakes whoever waits for it."""

    def __del__(self, sleep=time.sleep):
        sleep(3)


def main():
    rank = int(sys.argv[2])
    store = dist.FileStore(sys.argv[1], 2)
    limit = timedelta(seconds=120)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=limit)
    transport = GlooTransport(None, 120)
    if rank == 1:
        transport.exchange_notes("", "leaving")
        time.sleep(1.5)
        os._exit(0)
    bundle = SimpleNamespace(is_result=False, peer=1, index=0, is_send=False)
    transport.start([Parcel(bundle, (torch.zeros(4),), 0)])
    transport.exchange_notes("", "leaving")
    sys.modules["builtins"].slow_to_go = SlowToGo()
    sys.exit(7)


if __name__ == "__main__":
    main()
