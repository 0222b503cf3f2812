"""What a command line names, as objects."""

from pathlib import Path

from gptf_gpytorch.serving.fold_in import fold_in
from gptf_gpytorch.serving.reading import read_entries
from gptf_gpytorch.training.saved import FittedModel


def load_model(folder: Path, few: Path | None = None) -> FittedModel:
    """A saved model, with the new entities of a file."""
    fitted = FittedModel.load(folder)
    return fitted if few is None else fold_in(fitted, read_entries(fitted, few, unseen="new", duplicates="keep"))
