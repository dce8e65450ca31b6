"""Replicas as a Ray Serve deployment: `pip install 'ray[serve]'`, `serve run ray_serve:deployment`.

Every replica is a process with a model of its own; Ray balances over them and starts more or fewer.
The streams, errors and texts are those of `paceline serve`.
"""

from __future__ import annotations

from typing import Any

from ray import serve

from paceline.registry import loading
from paceline.serving.app import Service
from paceline.serving.model import ServedModel
from paceline.serving.settings import Settings

MODEL = "smollm2-135m"
SETTINGS = Settings(max_batch=8, max_waiting=16)


def build() -> Any:
    """Load the model and return the ASGI application; Ray calls it in every replica."""
    loaded = loading.load_model(MODEL)
    engine = loading.make_engine(loaded, max_batch=SETTINGS.max_batch)
    model = ServedModel(engine, [MODEL], loaded.source.fingerprint, MODEL)
    service = Service(SETTINGS)

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if service.worker is None and scope["type"] == "http":
            service.open(model)  # in the event loop that will answer
        await service.app(scope, receive, send)

    return application


deployment = serve.deployment(
    serve.ingress(build)(),
    max_ongoing_requests=SETTINGS.max_batch + SETTINGS.max_waiting,
    autoscaling_config={"min_replicas": 1, "max_replicas": 4, "target_ongoing_requests": 8},
).bind()
