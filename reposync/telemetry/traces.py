"""Traces of runs and searches, by OpenTelemetry's SDK, which the extra `otel` installs. Imported only if
OTEL_EXPORTER_OTLP_ENDPOINT is set; the SDK reads this and its other variables itself.

No span has a query, a path or the text of an exception.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

Attributes = Mapping[str, str | int | float | bool]
Times = tuple[float, float]
"""Begin and end, in seconds of `time.monotonic`."""


class Traces:
    """Its provider is not OpenTelemetry's global one: FastAPI's spans, which have the query, would be exported too."""

    def __init__(self, version: str) -> None:
        named = {} if os.environ.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: "reposync"}
        self._provider = TracerProvider(resource=Resource.create({**named, SERVICE_VERSION: version}))
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("reposync", version)

    @contextmanager
    def span(self, name: str, attributes: Attributes) -> Iterator[None]:
        """Around work whose own spans are below it."""
        with self._tracer.start_as_current_span(
            name, attributes=attributes, record_exception=False, set_status_on_exception=False
        ):
            yield

    def ended(self, name: str, times: Times, attributes: Attributes, parts: Mapping[str, Times] | None = None) -> None:
        """A span of what has ended, below the current one, and one below it for each of its `parts`."""
        wall = time.time() - time.monotonic()
        began, end = (round((moment + wall) * 1e9) for moment in times)
        span = self._tracer.start_span(name, attributes=attributes, start_time=began)
        inside = trace.set_span_in_context(span)
        for part, (part_began, part_end) in (parts or {}).items():
            child = self._tracer.start_span(part, inside, start_time=round((part_began + wall) * 1e9))
            child.end(round((part_end + wall) * 1e9))
        span.end(end)

    def close(self) -> None:
        """Send what is left. Takes some seconds if the receiver does not answer."""
        self._provider.shutdown()
