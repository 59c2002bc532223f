"""Runs in DeepSparse's own environment: answers each line on stdin with the seconds of one run."""

import json
import sys
import time
from pathlib import Path


def main() -> None:
    """Compile the model given on the command line, and run it once per line on stdin."""
    import deepsparse
    import numpy as np

    model, batch, threads, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    engine = deepsparse.compile_model(model, batch, num_cores=threads)
    print("ready", flush=True)
    for _ in sys.stdin:
        x = np.load(folder / "in.npy")
        start = time.perf_counter()
        output = engine.run([x])[0]
        spent = time.perf_counter() - start
        np.save(folder / "out.npy", output)
        print(json.dumps(spent), flush=True)


if __name__ == "__main__":
    main()
