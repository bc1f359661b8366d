"""The smallest Celery there is, on the same broker: what a round trip costs by itself."""

from __future__ import annotations

import os

from celery import Celery

BROKER = os.environ.get("BENCH_BROKER", "memory://")

# The portal's own application stays the one that its hops are sent through.
app = Celery("bare", broker=BROKER, backend=BROKER, set_as_current=False)
app.conf.update(task_default_queue="bare", worker_hijack_root_logger=False)


@app.task(name="bare.echo")
def echo(value: int) -> int:
    """Come back."""
    return value
