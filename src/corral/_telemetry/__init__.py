"""OpenTelemetry: the events of a run as spans. ``spans`` makes them and writes them as JSON;
``sender`` sends them, also while a run goes on, if the option ``otel`` asks for it."""
