"""OpenTelemetry: the events of a run as spans. ``spans`` makes them, ``otlp_json`` and ``sender``
write and send them, ``live`` does so while a run goes on, if the option ``otel`` asks for it."""
