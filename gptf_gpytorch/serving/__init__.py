"""Layer 8: from a fitted model to answers: predictions, metrics, recommendations, explanations, new entities."""
