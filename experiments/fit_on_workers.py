"""One fit by the workers of a job: horovodrun -np 2 python experiments/fit_on_workers.py FOLDER

FOLDER holds the entries and `config.json`; what comes of it goes to FOLDER/run.
"""

import json
import sys
from pathlib import Path

from gptf_gpytorch import TensorEntries, TrainConfig, fit
from gptf_gpytorch.distributed import current

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    config = TrainConfig.from_dict(json.loads((folder / "config.json").read_text()))
    communicator = current()
    fit(TensorEntries.load(folder / "entries"), config, communicator=communicator, output=folder / "run")
    communicator.close()
