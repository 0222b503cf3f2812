"""A saved model as MLflow serves it. MLflow keeps this file beside the model and runs it: nothing is unpickled.

Nothing imports it; :mod:`gptf_gpytorch.serving.served` says what it answers.
"""

from typing import Any

from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel

from gptf_gpytorch.serving.served import answer
from gptf_gpytorch.training.saved import FittedModel


class ServedModel(PythonModel):
    """Predictions in the user's own ids."""

    def load_context(self, context: Any) -> None:
        """Load the model, whose checksums are looked at."""
        self.fitted = FittedModel.load(context.artifacts["model"])

    # Without types: MLflow takes those of a table for a mistake, and says so wherever the model is loaded.
    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
        """The rows of a table, with their predictions."""
        return answer(self.fitted, model_input, **(params or {}))


set_model(ServedModel())
