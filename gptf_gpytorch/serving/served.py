"""What a model answers when MLflow serves it: the rows of a table in the user's own ids, with predictions beside them."""

import json
from pathlib import Path
from typing import Any

from gptf_gpytorch.data.vocabulary import UnseenPolicy
from gptf_gpytorch.serving.tables import predict_table
from gptf_gpytorch.training.saved import FittedModel

#: The code that MLflow keeps with a model.
CODE = Path(__file__).with_name("pyfunc_model.py")
_DEFAULTS = {"unseen": ("string", "error"), "interval": ("double", 0.95)}


def answer(fitted: FittedModel, rows: Any, unseen: UnseenPolicy = "error", interval: float = 0.95) -> Any:
    """What ``gptf predict`` would write for the rows, as a pandas table.

    :param rows: a pandas table with the model's modes; indices count from 0 where a mode has no ids.
    """
    return predict_table(fitted, rows, unseen=unseen, interval=interval).to_pandas()


def signature(fitted: FittedModel) -> dict[str, str]:
    """The types of what goes in and comes out, as MLflow writes them."""
    inputs = [{"name": name, "type": kind, "required": True} for name, kind in _modes(fitted).items()]
    names = ["mean", "std", *(["probability"] if fitted.binary else []), "lower", "upper"]
    outputs = [*inputs, *({"name": name, "type": "double", "required": True} for name in names)]
    params = [{"name": n, "type": kind, "default": value, "shape": None} for n, (kind, value) in _DEFAULTS.items()]
    return {"inputs": json.dumps(inputs), "outputs": json.dumps(outputs), "params": json.dumps(params)}


def example(fitted: FittedModel, rows: int = 3) -> dict[str, list[Any]]:
    """A small table that the model answers."""
    found: dict[str, list[Any]] = {}
    for name, size, vocabulary in zip(fitted.mode_names, fitted.shape, fitted.vocabularies, strict=True):
        places = [row % size for row in range(rows)]
        found[name] = places if vocabulary is None else vocabulary.decode(places)
    return found


def _modes(fitted: FittedModel) -> dict[str, str]:
    """The type of each mode's ids."""
    kinds = ["long" if v is None or v.kind == "integer" else "string" for v in fitted.vocabularies]
    return dict(zip(fitted.mode_names, kinds, strict=True))
