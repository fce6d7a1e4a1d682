"""Small neural networks and pipelines of scikit-learn through skl2onnx."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FEATURES, ROWS, STEPS = 12, 200, 20


def pipeline(name: str, facts: Mapping[str, Any]) -> bytes:
    """The ONNX file of a pipeline that is fitted to random rows; probabilities are a tensor (`zipmap`)."""
    import numpy as np
    from skl2onnx import to_onnx
    from sklearn.base import is_classifier

    rng = np.random.default_rng(1)
    rows = rng.standard_normal((ROWS, FEATURES)).astype(np.float32)
    sums = rows @ rng.standard_normal((FEATURES, 3)).astype(np.float32)
    model = _model(name)
    many = name.endswith("_many")
    if is_classifier(model):
        wanted: Any = (sums > 0).astype(int) if many else sums.argmax(axis=1)
    else:
        wanted = sums if many else sums[:, 0]
    model.fit(rows, wanted)
    options = {id(model): {"zipmap": False}} if is_classifier(model) else None
    return bytes(to_onnx(model, rows[:1], options=options, target_opset=18).SerializeToString())


def _model(name: str) -> Any:
    from sklearn.decomposition import PCA
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.neural_network import MLPClassifier, MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MinMaxScaler, StandardScaler

    sizes: dict[str, Any] = {"hidden_layer_sizes": (32, 16), "max_iter": STEPS, "random_state": 1}
    return {
        "mlp_classifier": lambda: MLPClassifier(**sizes),
        "mlp_classifier_tanh": lambda: MLPClassifier(activation="tanh", **sizes),
        "mlp_classifier_logistic": lambda: MLPClassifier(activation="logistic", **sizes),
        "mlp_classifier_many": lambda: MLPClassifier(**sizes),
        "mlp_regressor": lambda: MLPRegressor(**sizes),
        "mlp_regressor_identity": lambda: MLPRegressor(activation="identity", **sizes),
        "mlp_regressor_many": lambda: MLPRegressor(**sizes),
        "scaled_mlp": lambda: make_pipeline(StandardScaler(), MLPClassifier(**sizes)),
        "min_max_mlp": lambda: make_pipeline(MinMaxScaler(), MLPRegressor(**sizes)),
        "pca_mlp": lambda: make_pipeline(PCA(6), MLPClassifier(**sizes)),
        "logistic_regression": lambda: LogisticRegression(),
        "ridge": lambda: Ridge(),
    }[name]()
