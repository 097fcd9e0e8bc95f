"""Runs a training script under an `Observer`, in a process that the audit has started.

``python worker.py FOLDER STEPS SCRIPT [ARGS]``. When enough has been recorded the process says
so by a file and waits to be ended: other ranks may still need what it has sent.
"""

import os
import random
import runpy
import sys
import threading
import traceback
from pathlib import Path

FULL = "full"


def main() -> None:
    """Run the script, write its records, and end without its modules taken apart."""
    folder, steps, *words = sys.argv[1:]
    mine = Path(folder) / f"rank-{os.environ['RANK']}"
    import numpy as np
    import torch

    from dcp_runtime.auditing.observer import Observer

    def wait_to_be_ended() -> None:
        (mine / FULL).touch()
        threading.Event().wait()

    # Scripts that forget to set a seed begin alike on all ranks.
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - what scripts use
    torch.set_num_threads(1)
    observer = Observer(mine, int(steps), wait_to_be_ended, is_audit=True)
    observer.watch()
    failed = None
    try:
        sys.argv = words
        sys.path[0] = str(Path(words[0]).resolve().parent)
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        failed = f"SystemExit: {end.code}" if end.code else None
    except BaseException as error:
        traceback.print_exc()
        failed = f"{type(error).__name__}: {error}"
    observer.close(has_ended=failed is None)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(failed is not None)


if __name__ == "__main__":
    main()
